// The millrace program. The only place that catches and prints: one line, exit code 2 for the user's mistake,
// 1 for the world's failure.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>

#include "cli/commands.h"
#include "millrace/job/reader.h"

namespace millrace::cli {

void JobArguments::declare(CLI::App& command) {
  command.add_option("JOB", path, "The job file (YAML)")->required();
  command.add_option("--set", sets, "Set a key of the job: --set batch=64 --set optimizer.lr=0.1")
      ->type_name("KEY=VALUE")
      ->take_all()
      ->allow_extra_args(false);
}

namespace {

int run(int argc, char** argv) {
  CLI::App app{"Millrace trains neural networks across devices by pipeline and data parallelism.", "millrace"};
  app.require_subcommand(1);
  app.set_version_flag("--version", MILLRACE_VERSION);
  app.failure_message(
      [](const CLI::App*, const CLI::Error& error) { return fmt::format("millrace: {}\n", error.what()); });
  Action action;
  declare_train(app, action);
  declare_bench(app, action);
  CLI::App* keys = app.add_subcommand("keys", "List every key of a job file with its default and meaning");
  keys->callback([&] { action = [] { fmt::print("{}", job::describe_keys()); }; });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  action();
  return 0;
}

}  // namespace
}  // namespace millrace::cli

int main(int argc, char** argv) {
  try {
    return millrace::cli::run(argc, argv);
  } catch (const std::invalid_argument& error) {
    fmt::print(stderr, "millrace: {}\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "millrace: out of memory\n");
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "millrace: {}\n", error.what());
    return 1;
  }
}
