// millrace export: the parameters of a run as torchvision or Hugging Face would publish them.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <system_error>

#include "cli/commands.h"
#include "cli/export_params.h"
#include "millrace/base/error.h"
#include "millrace/job/reader.h"
#include "millrace/model/model.h"
#include "millrace/report/run_directory.h"
#include "millrace/report/units.h"
#include "millrace/state/model_config.h"
#include "millrace/state/params_file.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

struct ExportArguments {
  std::string source, out, job;
};

// A run directory, or a file of parameters with its job.
struct Trained {
  fs::path params, job;
};

Trained find_trained(const ExportArguments& arguments) {
  const fs::path source(arguments.source);
  std::error_code error;
  const fs::file_type type = fs::status(source, error).type();
  if (type == fs::file_type::not_found || type == fs::file_type::none) {
    fail_input("{}: there is no such run or file; write the directory that millrace train made", source.string());
  }
  const bool is_run = type == fs::file_type::directory;
  Trained trained{is_run ? source / "model.safetensors" : source, !arguments.job.empty() ? fs::path(arguments.job)
                                                                  : is_run               ? source / "job.yaml"
                                                                           : source.parent_path() / "job.yaml"};
  if (arguments.job.empty() && !fs::exists(trained.job)) {
    fail_input("{}: {} is missing, which says what model it is; name the job with --job", source.string(),
               trained.job.string());
  }
  if (!fs::exists(trained.params)) {
    fail_input("{}: the run has not ended, or diverged: model.safetensors is missing", source.string());
  }
  return trained;
}

state::State read_trained(const Trained& trained, const graph::Graph& graph) {
  state::State state;
  const auto notes = state::load_params(trained.params.string(), graph, state);
  // What a training could start from is not what one has come to: nothing may be made up here.
  if (!notes.empty()) {
    fail_input("{}: not what a run of {} leaves: {}", trained.params.string(), trained.job.string(), notes.front());
  }
  return state;
}

void make_directory(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error && !fs::is_directory(path)) error = std::make_error_code(std::errc::not_a_directory);
  if (error) {
    fail_input("-o {}: cannot be a directory: {}; a file's name ends with .safetensors", path.string(),
               error.message());
  }
}

void export_run(const ExportArguments& arguments) {
  const Trained trained = find_trained(arguments);
  // The file that the run itself began with may be gone by now.
  const job::Job job = job::read_job(trained.job.string(), {"model.init="});
  const graph::Graph graph = model::build(job.model, 1, 0);
  export_params(graph, job.model.name, read_trained(trained, graph), arguments.out);
}

}  // namespace

void export_params(const graph::Graph& graph, const std::string& model, state::State state, const fs::path& out) {
  const bool to_file = out.extension() == ".safetensors" && !fs::is_directory(out);
  const nlohmann::ordered_json config = state::model_config(graph);
  if (!to_file) make_directory(out);
  const fs::path params_file = to_file ? out : out / "model.safetensors", config_file = out / "config.json";
  const bool writes_config = !to_file && !config.is_null();
  report::check_file(params_file, "-o");
  if (writes_config) report::check_file(config_file, "-o");
  state::write_params(params_file.string(), graph, std::move(state.params));
  if (writes_config) report::write_file(config_file, config.dump(2) + "\n");

  const std::string what = config.is_null() ? model : config["architectures"][0].get<std::string>();
  fmt::print("{}: {}, {} parameters\n", params_file.string(), what, report::human_large(graph.trainable_elements()));
  if (writes_config) {
    fmt::print("{}: load both with transformers' {}.from_pretrained(\"{}\")\n", config_file.string(), what,
               out.string());
  } else if (config.is_null()) {
    fmt::print("no config.json: the names are torchvision's; load_state_dict takes the tensors\n");
  } else {
    fmt::print("no config.json: -o DIR writes one for transformers' from_pretrained\n");
  }
}

void declare_export(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* command = app.add_subcommand("export", "Write a run's parameters for PyTorch and Hugging Face");
  command->add_option("RUN", arguments->source, "The run directory, or a file of parameters with its job.yaml beside")
      ->required()
      ->type_name("DIR");
  command->add_option("-o,--out", arguments->out, "model.safetensors, or a directory for it and its config.json")
      ->required()
      ->type_name("FILE|DIR")
      ->check(not_empty("exported"));
  command->add_option("--job", arguments->job, "The job of the parameters (default: job.yaml beside them)")
      ->type_name("FILE")
      ->check(not_empty("job.yaml"));
  command->footer(
      "Transformers get Hugging Face's names and shapes: from_pretrained reads the directory. Other models have\n"
      "torchvision's names. Files that are there are replaced, each in one piece.");
  command->callback([arguments, &action] { action = [arguments] { export_run(*arguments); }; });
}

}  // namespace millrace::cli
