// millrace convert: a stored set of pictures in another form, a text as a file of tokens, or another system's job.
#include "millrace/data/files/convert.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "millrace/base/error.h"
#include "millrace/data/files/open_images.h"
#include "millrace/data/image/decode.h"
#include "millrace/data/image/resize.h"
#include "millrace/data/text/write_tokens.h"
#include "millrace/job/pipetransformer.h"
#include "millrace/job/reader.h"
#include "millrace/report/progress.h"
#include "millrace/report/run_directory.h"
#include "millrace/report/table.h"
#include "millrace/report/units.h"

namespace millrace::cli {
namespace {

struct ConvertArguments {
  std::string source, destination, to, from, split = "train", vocab;
  bool convert_color = false, cased = false;
  int token_bytes = 2;
  data::ConvertOptions options;
};

data::ImageKind kind_of(const std::string& path, const std::string& said) {
  if (const auto kind = data::kind_named(said)) return *kind;
  if (!std::filesystem::exists(path)) fail_input("{}: there is no such file or folder", path);
  const auto kind = data::guess_kind(path);
  if (kind) return *kind;
  fail_input(
      "{}: no set of pictures that is known: part-* files, folders of .jpg or .png for each class, or CIFAR's .bin "
      "files; write --from ofrecord, image_folder, cifar10 or cifar100",
      path);
}

void convert_text(const ConvertArguments& arguments) {
  if (arguments.vocab.empty()) fail_input("--to token_file: text needs a vocabulary; write e.g. --vocab vocab.txt");
  const data::WordPiece tokenizer = data::WordPiece::load(arguments.vocab, !arguments.cased);
  report::Progress progress;
  const auto begin = std::chrono::steady_clock::now();
  const data::WrittenTokens written = data::write_tokens(arguments.source, arguments.destination, tokenizer,
                                                         arguments.token_bytes, [&](int64_t done, int64_t total) {
                                                           report::ProgressState state;
                                                           state.phase = "convert";
                                                           state.step = done;
                                                           state.steps = total;
                                                           progress.update(state);
                                                         });
  progress.finish();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  report::Table table;
  table.add({"from", arguments.source});
  table.add({"to", fmt::format("{} (token_file)", arguments.destination)});
  table.add({"texts", report::human_count(written.texts)});
  table.add({"tokens", fmt::format("{} of {} bytes, below {}", report::human_count(written.tokens),
                                   arguments.token_bytes, tokenizer.vocabulary().size())});
  table.add({"size", report::human_bytes(written.bytes)});
  table.add({"time", report::human_duration(seconds)});
  fmt::print("{}", table.str());
}

void convert_set(const ConvertArguments& arguments) {
  const bool train = arguments.split == "train";
  const data::ImageKind from = kind_of(arguments.source, arguments.from);
  data::SkipLog skipped;
  data::ConvertOptions options = arguments.options;
  options.to = *data::kind_named(arguments.to);
  options.train = train;
  const auto source = data::open_images(from, arguments.source, train, 0, options.skip_bad ? &skipped : nullptr);
  const auto color = arguments.convert_color ? job::Color::Convert : job::Color::Strict;
  options.decode = [color](const data::StoredImage& stored, data::Image& out) {
    data::decode_picture(stored.bytes, 3, color, out);
  };
  options.encode_png = [](const data::Image& image) { return data::encode_png(image); };
  options.encode_jpeg = [](const data::Image& image, int quality) { return data::encode_jpeg(image, quality); };
  options.resize_image = data::resize_picture;

  report::Progress progress;
  report::Pace pace;
  auto last = std::chrono::steady_clock::now();
  int64_t before = -1;
  options.progress = [&](int64_t done, int64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (before >= 0) pace.step(std::chrono::duration<double>(now - last).count(), done - before);
    before = done;
    last = now;
    report::ProgressState state;
    state.phase = "convert";
    state.step = done;
    state.steps = total;
    state.samples_per_s = pace.samples_per_s();
    state.seconds_left = pace.seconds_left(total - done);
    progress.update(state);
  };
  const auto begin = std::chrono::steady_clock::now();
  const data::ConvertResult result = data::convert(*source, arguments.source, arguments.destination, options);
  progress.finish();

  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  report::Table table;
  table.add({"from", fmt::format("{} ({})", arguments.source, data::name_of(from))});
  table.add({"to", fmt::format("{} ({})", arguments.destination, arguments.to)});
  table.add({"samples", report::human_count(result.samples)});
  table.add(
      {"size", fmt::format("{} in {}", report::human_bytes(result.bytes), report::counted(result.parts, "part"))});
  if (result.resumed_parts > 0) {
    table.add({"from before", report::counted(result.resumed_parts, "part")});
  }
  const int64_t left_out = static_cast<int64_t>(result.skipped.size()) + skipped.count();
  if (options.skip_bad) table.add({"skipped", report::human_count(left_out)});
  table.add({"time", report::human_duration(seconds)});
  fmt::print("{}", table.str());
  for (const std::string& reason : skipped.reasons()) fmt::print("skipped: {}\n", reason);
  for (size_t i = 0; i < std::min<size_t>(result.skipped.size(), data::SkipLog::kKept); ++i) {
    fmt::print("skipped: {}\n", result.skipped[i]);
  }
  if (left_out > 0) fmt::print("all of them are listed in {}/convert.json\n", arguments.destination);
}

struct ConvertJobArguments {
  std::string source, destination;
  job::Machines machines;
};

void convert_job(const ConvertJobArguments& arguments) {
  report::check_file(arguments.destination, "JOB");
  const job::ConvertedJob made = job::read_pipetransformer(arguments.source, arguments.machines);
  std::string text =
      fmt::format("# From PipeTransformer's {}.\n", std::filesystem::path(arguments.source).filename().string());
  for (const std::string& note : made.notes) text += "# " + note + "\n";
  report::write_file(arguments.destination, text + job::to_short_yaml(made.job));
  fmt::print("{} written\n", arguments.destination);
  for (const std::string& note : made.notes) fmt::print("  {}\n", note);
}

void declare_convert_job(CLI::App& convert, Action& action) {
  auto arguments = std::make_shared<ConvertJobArguments>();
  CLI::App* command = convert.add_subcommand("job", "Write a YAML file of PipeTransformer as a job");
  command->add_option("SOURCE", arguments->source, "PipeTransformer's file")
      ->required()
      ->type_name("FILE")
      ->check(not_empty("train_config.yaml"));
  command->add_option("JOB", arguments->destination, "The job to write")
      ->required()
      ->type_name("FILE")
      ->check(not_empty("job.yaml"));
  command->add_option("--nodes", arguments->machines.nodes, "Machines, which its command line named")
      ->check(CLI::Range(1, 4096))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--devices", arguments->machines.devices, "GPUs of each, likewise")
      ->check(CLI::Range(1, 1024))
      ->type_name("N")
      ->capture_default_str();
  command->callback([arguments, &action] { action = [arguments] { convert_job(*arguments); }; });
}

}  // namespace

void declare_convert(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<ConvertArguments>();
  data::ConvertOptions& options = arguments->options;
  CLI::App* command =
      app.add_subcommand("convert", "Write a set of pictures in another form, text as tokens, or another system's job");
  declare_convert_job(*command, action);
  // Not for its subcommand, so they are not simply required().
  command->add_option("SOURCE", arguments->source, "The set: a folder or a file; a text or a .tsv")->type_name("PATH");
  command
      ->add_option("DESTINATION", arguments->destination,
                   "A new folder, or one begun by the same conversion; a new file of tokens")
      ->type_name("PATH")
      ->check(not_empty("imagenet-ofrecord"));
  const std::vector<std::string> kinds{"ofrecord", "image_folder", "cifar10", "cifar100"};
  std::vector<std::string> targets = kinds;
  targets.push_back("token_file");
  command->add_option("--to", arguments->to, "What to write: ofrecord, image_folder, cifar10, cifar100 or token_file")
      ->check(CLI::IsMember(targets))
      ->type_name("KIND");
  command->option_defaults()->group("Pictures");
  command->add_option("--from", arguments->from, "What the source is (default: told by its files)")
      ->check(CLI::IsMember(kinds))
      ->type_name("KIND");
  command->add_option("--split", arguments->split, "train or test, where the source has both")
      ->check(CLI::IsMember({"train", "test"}))
      ->type_name("SPLIT")
      ->capture_default_str();
  command->add_option("--parts", options.parts, "Files to write (default: one for 5,000 samples)")
      ->check(CLI::Range(0, 100'000))
      ->type_name("N");
  command->add_option("--threads", options.threads, "Threads (default: the machine's, at most 8)")
      ->check(CLI::Range(0, 1024))
      ->type_name("N");
  command->add_option("--quality", options.quality, "Raw pixels become JPEG of this quality (default: PNG, no loss)")
      ->check(CLI::Range(1, 100))
      ->type_name("1-100");
  command->add_flag("--resize", options.resize, "To CIFAR: resize pictures that are not 32x32 instead of refusing");
  command->add_flag("--convert-color", arguments->convert_color, "To CIFAR: grayscale and CMYK pictures become RGB");
  command->add_flag("--shuffle", options.shuffle, "In a random order, so that parts mix the classes");
  command->add_option("--seed", options.seed, "Of the random order")->type_name("N")->capture_default_str();
  command->add_flag("--skip-bad", options.skip_bad, "Leave out what cannot be read, and list it");
  command->option_defaults()->group("Text");
  command->add_option("--vocab", arguments->vocab, "The WordPiece vocabulary, a vocab.txt")
      ->type_name("FILE")
      ->check(not_empty("vocab.txt"));
  command->add_flag("--cased", arguments->cased, "Keep upper case and accents");
  command->add_option("--token-bytes", arguments->token_bytes, "Bytes of a token")
      ->check(CLI::IsMember({2, 4}))
      ->type_name("2|4")
      ->capture_default_str();
  command->footer(
      "JPEG and PNG files pass unchanged between folders and records. An interrupted conversion goes on where it "
      "stopped\nwhen it is started again. Class names go to classes.txt, the folders' names or CIFAR's own file.\nA "
      "file of tokens has a [SEP] behind each sentence of a .tsv, or each text that ends with an empty line.");
  command->callback([arguments, command, &action] {
    if (!command->get_subcommands().empty()) return;
    for (const char* needed : {"SOURCE", "DESTINATION", "--to"}) {
      if (command->get_option(needed)->count() == 0) throw CLI::RequiredError(needed);
    }
    const bool text = arguments->to == "token_file";
    for (const CLI::Option* option : command->get_options()) {
      if (option->count() == 0 || option->get_group() != (text ? "Pictures" : "Text")) continue;
      fail_input("{}: not for --to {}; leave it out", option->get_name(), arguments->to);
    }
    action = [arguments, text] { text ? convert_text(*arguments) : convert_set(*arguments); };
  });
}

}  // namespace millrace::cli
