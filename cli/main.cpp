// The millrace program. The only place that catches and prints: one line, exit code 2 for the user's mistake,
// 1 for the world's failure.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>

#include "cli/commands.h"
#include "cli/together.h"
#include "millrace/comm/process.h"
#include "millrace/job/reader.h"
#include "millrace/job/text.h"
#include "millrace/plan/plan_file.h"

namespace millrace::cli {

void JobArguments::declare(CLI::App& command, bool required) {
  command.add_option("JOB", path, "The job file (YAML)")->required(required)->type_name("FILE");
  command.add_option("--set", sets, "Set a key of the job: --set batch=64 --set optimizer.lr=0.1")
      ->type_name("KEY=VALUE")
      ->take_all()
      ->allow_extra_args(false);
  command.add_option("--plan", plan, "Take parallel.* from a plan (plan.json)")
      ->type_name("FILE")
      ->check(not_empty("plan.json"));
}

job::Job JobArguments::read() const {
  std::vector<std::string> settings;
  if (!plan.empty()) settings = plan::read_plan_settings(plan);
  settings.insert(settings.end(), sets.begin(), sets.end());
  return job::read_job(path, settings);
}

CLI::Validator not_empty(const std::string& example) {
  return {[example](std::string& value) {
            return value.empty() ? fmt::format("the name is empty; write e.g. {}", example) : std::string();
          },
          ""};
}

namespace {

std::string or_nearest(const std::string& typed, const std::vector<std::string>& known) {
  const std::string near = job::nearest(typed, known);
  return near.empty() ? fmt::format("write one of {}", fmt::join(known, ", ")) : fmt::format("did you mean {}?", near);
}

std::string explain_option(const CLI::App& command, const std::string& typed) {
  std::vector<std::string> options;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_lnames().empty()) options.push_back("--" + option->get_lnames()[0]);
  }
  return fmt::format("{} takes no option {}; {}", command.get_name(), job::in_quotes(typed),
                     or_nearest(typed.substr(0, typed.find('=')), options));
}

// "millrace schedule check", as the user writes it.
std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : full_name(*parent) + " " + command.get_name();
}

// A mistake on the command line, with what CLI11 leaves out: which word, and what to write instead. Looks at the
// command that was given, then at those within it.
std::string explain(const CLI::App& app, const CLI::Error& error) {
  const auto chosen = app.get_subcommands();
  const std::vector<std::string> extras = app.remaining();
  const bool has_commands = !app.get_subcommands({}).empty();
  if (!extras.empty() && extras[0].starts_with('-')) {
    const bool too_early = has_commands && (app.get_parent() == nullptr) && !chosen.empty();
    return explain_option(app, extras[0]) + (too_early ? "; options of a command follow it" : "");
  }
  if (!chosen.empty()) return explain(*chosen.front(), error);
  if (has_commands && app.get_require_subcommand_min() > 0) {
    std::vector<std::string> commands;
    for (const CLI::App* command : app.get_subcommands({})) commands.push_back(command->get_name());
    const std::string of = app.get_parent() == nullptr ? "" : app.get_name() + ": ";
    if (extras.empty()) return fmt::format("{}a command is missing; write one of {}", of, fmt::join(commands, ", "));
    return fmt::format("{}there is no command {}; {}", of, job::in_quotes(extras[0]), or_nearest(extras[0], commands));
  }
  return fmt::format("{}: {}; see {} --help", app.get_name(), error.what(), full_name(app));
}

// A progress line may stand on the terminal when the user interrupts: it is ended, then the signal does its work.
void end_line_on_interrupt() {
  if (::isatty(STDERR_FILENO) == 0) return;
  struct sigaction action {};
  action.sa_handler = [](int signal) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, "\n", 1);
    ::raise(signal);
  };
  action.sa_flags = SA_RESETHAND | SA_NODEFER;
  for (int signal : {SIGINT, SIGTERM}) {
    struct sigaction inherited {};
    ::sigaction(signal, nullptr, &inherited);
    if (inherited.sa_handler == SIG_DFL) ::sigaction(signal, &action, nullptr);  // ignored stays ignored
  }
}

int run(int argc, char** argv) {
  CLI::App app{"Millrace trains neural networks across devices by pipeline and data parallelism.", "millrace"};
  app.require_subcommand(1);
  app.set_version_flag("--version", MILLRACE_VERSION);
  app.failure_message([](const CLI::App* parser, const CLI::Error& error) {
    return fmt::format("millrace: {}\n", explain(*parser, error));
  });
  Action action;
  declare_train(app, action);
  declare_bench(app, action);
  declare_schedule(app, action);
  declare_profile(app, action);
  declare_cluster(app, action);
  declare_plan(app, action);
  declare_simulate(app, action);
  declare_report(app, action);
  declare_reproduce(app, action);
  declare_convert(app, action);
  declare_data(app, action);
  declare_export(app, action);
  declare_checkpoint(app, action);
  CLI::App* keys = app.add_subcommand("keys", "List every key of a job file with its default and meaning");
  keys->callback([&] { action = [] { fmt::print("{}", job::describe_keys()); }; });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (!comm::is_first_process()) throw SilentExit();
    return app.exit(error) == 0 ? 0 : 2;
  }
  end_line_on_interrupt();
  return action();
}

}  // namespace
}  // namespace millrace::cli

int main(int argc, char** argv) {
  auto fail = [](int code, const char* line) {
    fmt::print(stderr, "millrace: {}\n", line);
    std::fflush(stderr);
    millrace::comm::end_failed_process(code);
    return code;
  };
  try {
    return millrace::cli::run(argc, argv);
  } catch (const millrace::cli::SilentExit&) {
    return 0;
  } catch (const std::invalid_argument& error) {
    return fail(2, error.what());
  } catch (const std::bad_alloc&) {
    return fail(1, "out of memory");
  } catch (const std::exception& error) {
    return fail(1, error.what());
  }
}
