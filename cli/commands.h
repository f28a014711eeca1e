// The subcommands: each declares its options on the parser and leaves what to do in `action`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/job/job.h"

namespace millrace::cli {

// Returns the exit code where a command ends in more ways than well or with an error.
struct Action : std::function<int()> {
  Action() = default;
  template <typename Work>
  Action& operator=(Work work) {
    if constexpr (std::is_same_v<decltype(work()), int>) {
      std::function<int()>::operator=(std::move(work));
    } else {
      std::function<int()>::operator=([work = std::move(work)] {
        work();
        return 0;
      });
    }
    return *this;
  }
};

// What every command that takes a job takes.
struct JobArguments {
  std::string path;
  std::string plan;
  std::vector<std::string> sets;
  void declare(CLI::App& command, bool required = true);
  // The file, then the plan, then --set.
  job::Job read() const;
};

// For options that name a file or directory: refuses "", which would read as the option not given.
CLI::Validator not_empty(const std::string& example);

void declare_train(CLI::App& app, Action& action);
void declare_bench(CLI::App& app, Action& action);
void declare_schedule(CLI::App& app, Action& action);
void declare_profile(CLI::App& app, Action& action);
void declare_cluster(CLI::App& app, Action& action);
void declare_plan(CLI::App& app, Action& action);
void declare_simulate(CLI::App& app, Action& action);
void declare_report(CLI::App& app, Action& action);
void declare_reproduce(CLI::App& app, Action& action);
void declare_convert(CLI::App& app, Action& action);
void declare_data(CLI::App& app, Action& action);
void declare_export(CLI::App& app, Action& action);
void declare_checkpoint(CLI::App& app, Action& action);

}  // namespace millrace::cli
