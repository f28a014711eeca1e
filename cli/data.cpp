// millrace data inspect: what a stored data set holds, and what training will see of it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "millrace/base/error.h"
#include "millrace/data/contact_sheet.h"
#include "millrace/data/files/listing.h"
#include "millrace/data/files/open_images.h"
#include "millrace/data/files/token_files.h"
#include "millrace/data/image_dataset.h"
#include "millrace/data/survey.h"
#include "millrace/data/text/encoding.h"
#include "millrace/data/text/squad_windows.h"
#include "millrace/data/text/tsv.h"
#include "millrace/data/token_dataset.h"
#include "millrace/report/percentiles.h"
#include "millrace/report/progress.h"
#include "millrace/report/run_directory.h"
#include "millrace/report/table.h"
#include "millrace/report/units.h"

namespace millrace::cli {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

struct InspectArguments {
  std::string path, kind, split = "train", sheet, json_file, vocab;
  int64_t most = 5000;
  bool check = false;
  int size = 224, samples = 8, epochs = 5, tokens = 128, token_bytes = 2;
  uint64_t seed = 0;
};

const std::vector<std::string> kKinds{"ofrecord", "image_folder", "cifar10",   "cifar100",
                                      "tsv_text", "squad",        "token_file"};

std::string kind_of(const InspectArguments& arguments) {
  if (!arguments.kind.empty()) return arguments.kind;
  const fs::path path(arguments.path);
  if (!fs::exists(path)) fail_input("{}: there is no such file or folder", arguments.path);
  if (path.extension() == ".tsv") return "tsv_text";
  if (path.extension() == ".json") return "squad";
  if (const auto kind = data::guess_kind(arguments.path)) return data::name_of(*kind);
  if (path.extension() == ".bin") return "token_file";
  if (fs::is_directory(path) && !data::files_ending(arguments.path, ".bin").empty()) return "token_file";
  fail_input(
      "{}: no data set that is known: part-* files, folders of .jpg or .png for each class, CIFAR's .bin files, "
      ".tsv, SQuAD's .json or .bin files of tokens; write --kind with one of {}",
      arguments.path, fmt::join(kKinds, ", "));
}

std::string range_of(const std::vector<double>& values) {
  if (values.empty()) return "-";
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return fmt::format("{:.0f} to {:.0f}, median {:.0f}", *least, *most, report::percentile(values, 50));
}

json range_json(const std::vector<double>& values) {
  if (values.empty()) return nullptr;
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return {{"least", *least}, {"median", report::percentile(values, 50)}, {"most", *most}};
}

// Classes with the fewest and the most samples, as many lines as one likes to read.
void print_classes(const std::map<int32_t, int64_t>& per_label, const std::vector<std::string>& names) {
  constexpr size_t kShown = 10;
  if (per_label.empty()) return;
  std::vector<std::pair<int64_t, int32_t>> by_count;
  for (const auto& [label, count] : per_label) by_count.emplace_back(count, label);
  std::stable_sort(by_count.begin(), by_count.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  report::Table table({"label", "class", "samples", "share"});
  int64_t all = 0;
  for (const auto& [label, count] : per_label) all += count;
  auto add = [&](size_t i) {
    const auto [count, label] = by_count[i];
    const auto at = static_cast<size_t>(label);
    table.add({fmt::format("{}", label), at < names.size() ? names[at] : "", report::human_count(count),
               report::human_percent(static_cast<double>(count) / static_cast<double>(all))});
  };
  if (by_count.size() <= kShown) {
    std::stable_sort(by_count.begin(), by_count.end(),
                     [](const auto& a, const auto& b) { return a.second < b.second; });
    for (size_t i = 0; i < by_count.size(); ++i) add(i);
  } else {
    for (size_t i = 0; i < kShown / 2; ++i) add(i);
    table.add({"...", fmt::format("{} more", by_count.size() - kShown), "", ""});
    for (size_t i = by_count.size() - kShown / 2; i < by_count.size(); ++i) add(i);
  }
  fmt::print("\n{}", table.str());
}

void print_unusable(int64_t count, const std::vector<std::string>& reasons) {
  for (const std::string& reason : reasons) fmt::print("unusable: {}\n", reason);
  const auto more = count - static_cast<int64_t>(reasons.size());
  if (more > 0) fmt::print("and {} more\n", report::human_count(more));
}

// Spread over the set.
std::vector<int64_t> sheet_samples(int64_t size, int wanted) {
  std::vector<int64_t> samples;
  const int64_t count = std::min<int64_t>(size, wanted);
  for (int64_t i = 0; i < count; ++i) samples.push_back(i * size / count);
  return samples;
}

json inspect_images(const InspectArguments& arguments, const std::string& kind_name) {
  const data::ImageKind kind = *data::kind_named(kind_name);
  const bool train = arguments.split == "train";
  data::SkipLog skipped;  // damage that hides the rest of a part
  const auto source = data::open_images(kind, arguments.path, train, 0, &skipped);

  report::Progress progress;
  data::SurveyOptions options;
  options.most = arguments.check ? 0 : arguments.most;
  options.decode = arguments.check;
  options.progress = [&](int64_t done, int64_t total) {
    report::ProgressState state;
    state.phase = arguments.check ? "check" : "look";
    state.step = done;
    state.steps = total;
    progress.update(state);
  };
  const data::Survey survey = data::survey(*source, options);
  progress.finish();

  const bool all = survey.looked_at == survey.samples;
  std::vector<std::string> formats;
  for (const auto& [name, count] : survey.formats) formats.push_back(report::human_count(count) + " " + name);
  const int64_t unusable = survey.unusable + skipped.count();
  report::Table table;
  table.add({"data", fmt::format("{} ({})", arguments.path, kind_name)});
  table.add({"samples", report::human_count(survey.samples)});
  if (!all)
    table.add({"looked at", fmt::format("{}, spread over all (--check: every one, decoded)",
                                        report::human_count(survey.looked_at))});
  table.add({"classes", fmt::format("{}{}", survey.per_label.size(), all ? "" : " seen")});
  table.add({"formats", formats.empty() ? "-" : fmt::format("{}", fmt::join(formats, ", "))});
  table.add({"width", range_of(survey.widths)});
  table.add({"height", range_of(survey.heights)});
  table.add({"bytes", range_of(survey.bytes)});
  table.add(
      {"unusable", fmt::format("{}{}", report::human_count(unusable), arguments.check ? "" : " (by their headers)")});
  fmt::print("{}", table.str());
  print_classes(survey.per_label, source->class_names());
  std::vector<std::string> reasons = skipped.reasons();
  reasons.insert(reasons.end(), survey.reasons.begin(), survey.reasons.end());
  if (!reasons.empty()) fmt::print("\n");
  print_unusable(unusable, reasons);

  json record{{"kind", kind_name},
              {"path", arguments.path},
              {"split", arguments.split},
              {"samples", survey.samples},
              {"looked_at", survey.looked_at},
              {"decoded", arguments.check},
              {"formats", survey.formats},
              {"width", range_json(survey.widths)},
              {"height", range_json(survey.heights)},
              {"bytes", range_json(survey.bytes)},
              {"unusable", unusable},
              {"reasons", reasons},
              {"class_names", source->class_names()}};
  for (const auto& [label, count] : survey.per_label) record["per_label"][std::to_string(label)] = count;

  if (!arguments.sheet.empty() && source->size() > 0) {
    job::Job job;
    job.seed = arguments.seed;
    job.model.image_size = kind_name.starts_with("cifar") && arguments.size == 224 ? 32 : arguments.size;
    job.data.kind = kind_name == "cifar10"        ? job::DataKind::Cifar10
                    : kind_name == "cifar100"     ? job::DataKind::Cifar100
                    : kind_name == "image_folder" ? job::DataKind::ImageFolder
                                                  : job::DataKind::OfRecord;
    job.data.color = job::Color::Convert;
    const data::Split split = train ? data::Split::Train : data::Split::Test;
    const data::ImageTransform transform = data::transform_of(job, split);
    data::SheetOptions sheet;
    sheet.epochs = train ? arguments.epochs : 1;
    const std::vector<int64_t> samples = sheet_samples(source->size(), arguments.samples);
    const std::vector<uint8_t> png = data::encode_png(data::contact_sheet(*source, samples, transform, sheet));
    report::write_file(arguments.sheet, {reinterpret_cast<const char*>(png.data()), png.size()});
    fmt::print("\nwritten: {}: samples {}, as stored and as {} it\n", arguments.sheet, fmt::join(samples, ", "),
               train ? fmt::format("the first {} see", report::counted(arguments.epochs, "epoch")) : "evaluation sees");
  }
  return record;
}

void add_lengths(const std::vector<double>& lengths, int limit, report::Table& table, json& record) {
  if (lengths.empty()) return;
  const auto cut = std::count_if(lengths.begin(), lengths.end(), [&](double length) { return length > limit; });
  table.add({"tokens", range_of(lengths)});
  table.add({"cut", fmt::format("{} have more than {}", report::human_count(cut), limit)});
  record["tokens"] = range_json(lengths);
  record["cut"] = cut;
}

json inspect_tsv(const InspectArguments& arguments) {
  data::SkipLog skipped;
  const data::TsvFile file = data::read_tsv(arguments.path, &skipped);
  std::map<int32_t, int64_t> per_label;
  for (const data::TsvRow& row : file.rows) ++per_label[row.label];
  json record{{"kind", "tsv_text"},
              {"path", arguments.path},
              {"samples", file.rows.size()},
              {"unusable", skipped.count()},
              {"reasons", skipped.reasons()}};
  for (const auto& [label, count] : per_label) record["per_label"][std::to_string(label)] = count;
  std::vector<double> lengths;
  if (!arguments.vocab.empty()) {
    const data::WordPiece tokenizer = data::WordPiece::load(arguments.vocab);
    for (size_t row = 0; row < file.rows.size(); ++row) {
      lengths.push_back(static_cast<double>(tokenizer.tokenize(file.sentence(row)).size() + 2));
    }
  }
  report::Table table;
  table.add({"data", arguments.path + " (tsv_text)"});
  table.add({"samples", report::human_count(static_cast<int64_t>(file.rows.size()))});
  table.add({"classes", fmt::format("{}", per_label.size())});
  add_lengths(lengths, arguments.tokens, table, record);
  table.add({"unusable", report::human_count(skipped.count())});
  fmt::print("{}", table.str());
  print_classes(per_label, {});
  if (skipped.count() > 0) fmt::print("\n");
  print_unusable(skipped.count(), skipped.reasons());
  return record;
}

json inspect_squad(const InspectArguments& arguments) {
  data::SkipLog skipped;
  const data::SquadFile file = data::read_squad(arguments.path, &skipped);
  json record{{"kind", "squad"},
              {"path", arguments.path},
              {"questions", file.questions.size()},
              {"paragraphs", file.contexts.size()},
              {"unusable", skipped.count()},
              {"reasons", skipped.reasons()}};
  report::Table table;
  table.add({"data", arguments.path + " (squad)"});
  table.add({"questions", report::human_count(static_cast<int64_t>(file.questions.size()))});
  table.add({"paragraphs", report::human_count(static_cast<int64_t>(file.contexts.size()))});
  if (!arguments.vocab.empty()) {
    const data::WordPiece tokenizer = data::WordPiece::load(arguments.vocab);
    const data::SquadWindowOptions options;
    const data::SquadWindows windows(file, tokenizer, options);
    const auto with_answer = std::count_if(windows.windows().begin(), windows.windows().end(),
                                           [](const data::SquadWindow& window) { return window.end > 0; });
    const auto count = static_cast<int64_t>(windows.windows().size());
    table.add({"windows", fmt::format("{} of {} tokens, {} with the whole answer", report::human_count(count),
                                      options.max_tokens, report::human_count(with_answer))});
    record["windows"] = count;
    record["windows_with_answer"] = with_answer;
  }
  table.add({"unusable", report::human_count(skipped.count())});
  fmt::print("{}", table.str());
  if (skipped.count() > 0) fmt::print("\n");
  print_unusable(skipped.count(), skipped.reasons());
  return record;
}

json inspect_tokens(const InspectArguments& arguments) {
  const data::TokenFiles files(arguments.path, arguments.token_bytes);
  int64_t tokens = 0, samples = 0;
  std::vector<std::string> too_short;
  for (size_t file = 0; file < files.num_files(); ++file) {
    tokens += files.tokens(file);
    samples += data::token_samples(files.tokens(file), arguments.tokens);
    if (files.tokens(file) > arguments.tokens) continue;
    too_short.push_back(fmt::format("{}: {} tokens, and a sample needs {}", files.path(file), files.tokens(file),
                                    arguments.tokens + 1));
  }
  json record{{"kind", "token_file"},       {"path", arguments.path},
              {"files", files.num_files()}, {"token_bytes", files.token_bytes()},
              {"tokens", tokens},           {"sample_tokens", arguments.tokens},
              {"samples", samples},         {"unusable", too_short.size()},
              {"reasons", too_short}};
  report::Table table;
  table.add({"data", arguments.path + " (token_file)"});
  table.add({"files", report::human_count(static_cast<int64_t>(files.num_files()))});
  table.add({"tokens", fmt::format("{} of {} bytes", report::human_count(tokens), files.token_bytes())});
  table.add({"samples", fmt::format("{} of {} tokens", report::human_count(samples), arguments.tokens)});
  if (arguments.check && tokens > 0) {
    report::Progress progress;
    const data::LargestToken largest = data::largest_token(files, 0, [&](int64_t done, int64_t total) {
      report::ProgressState state;
      state.phase = "check";
      state.step = done;
      state.steps = total;
      progress.update(state);
    });
    progress.finish();
    table.add({"largest", fmt::format("{} at position {} of {}; it needs model.vocabulary: {}", largest.token,
                                      largest.position, files.path(largest.file), int64_t{largest.token} + 1)});
    record["largest_token"] = largest.token;
  } else {
    table.add({"largest", "not known (--check: every token is read)"});
  }
  table.add({"unusable", report::counted(static_cast<int64_t>(too_short.size()), "file")});
  fmt::print("{}", table.str());
  if (!too_short.empty()) fmt::print("\n");
  const auto count = static_cast<int64_t>(too_short.size());
  too_short.resize(std::min(too_short.size(), data::SkipLog::kKept));
  print_unusable(count, too_short);
  return record;
}

void inspect(const InspectArguments& arguments) {
  const std::string kind = kind_of(arguments);
  const bool text = kind == "tsv_text" || kind == "squad" || kind == "token_file";
  if (text && !arguments.sheet.empty()) fail_input("--sheet: {} has no pictures; leave it out", arguments.path);
  if (!arguments.json_file.empty()) report::check_file(arguments.json_file, "--json");
  if (!arguments.sheet.empty()) report::check_file(arguments.sheet, "--sheet");
  const json record = kind == "tsv_text"     ? inspect_tsv(arguments)
                      : kind == "squad"      ? inspect_squad(arguments)
                      : kind == "token_file" ? inspect_tokens(arguments)
                                             : inspect_images(arguments, kind);
  if (!arguments.json_file.empty()) report::write_file(arguments.json_file, record.dump(2) + "\n");
}

}  // namespace

void declare_data(CLI::App& app, Action& action) {
  CLI::App* data = app.add_subcommand("data", "Look at data sets");
  data->require_subcommand(1);
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command = data->add_subcommand("inspect", "Count samples, classes and sizes, and draw some samples");
  command->add_option("PATH", arguments->path, "The data set: a folder or a file")->required()->type_name("PATH");
  command->add_option("--kind", arguments->kind, "What it is (default: told by its files)")
      ->check(CLI::IsMember(kKinds))
      ->type_name("KIND");
  command->add_option("--split", arguments->split, "train or test, where the set has both; decides the transform")
      ->check(CLI::IsMember({"train", "test"}))
      ->type_name("SPLIT")
      ->capture_default_str();
  command->add_option("--most", arguments->most, "Pictures to look at, spread over all; 0: every one")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 50))
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--check", arguments->check,
                    "Decode every picture, to find all that are broken; token_file: read every token");
  command->add_option("--sheet", arguments->sheet, "Draw samples before and after augmentation into this PNG")
      ->type_name("FILE")
      ->check(not_empty("sheet.png"));
  command->add_option("--samples", arguments->samples, "Rows of the sheet")
      ->check(CLI::Range(1, 200))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--epochs", arguments->epochs, "Augmented pictures of each sample on the sheet")
      ->check(CLI::Range(1, 50))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--size", arguments->size, "Height and width that training will have (CIFAR: 32)")
      ->check(CLI::Range(1, 16'384))
      ->type_name("PIXELS")
      ->capture_default_str();
  command->add_option("--seed", arguments->seed, "The job's seed, for the same crops")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--vocab", arguments->vocab, "Text: count tokens with this vocab.txt")
      ->type_name("FILE")
      ->check(not_empty("vocab.txt"));
  command->add_option("--tokens", arguments->tokens, "Text: length that a model will have")
      ->check(CLI::Range(3, 1'000'000))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--token-bytes", arguments->token_bytes, "token_file: bytes of a token")
      ->check(CLI::IsMember({2, 4}))
      ->type_name("2|4")
      ->capture_default_str();
  command->add_option("--json", arguments->json_file, "Also write what was found here")
      ->type_name("FILE")
      ->check(not_empty("data.json"));
  command->callback([arguments, &action] { action = [arguments] { inspect(*arguments); }; });
}

}  // namespace millrace::cli
