#include "cli/launch_command.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "millrace/base/error.h"

namespace millrace::cli {
namespace {

constexpr std::string_view kHostsExample = "write e.g. --hosts a:2,b:2";
constexpr int kMostSlots = 4096;

Host parse_host(std::string_view text, std::string_view all) {
  Host host;
  const size_t colon = text.find(':');
  host.name = text.substr(0, colon);
  const bool has_odd = host.name.find_first_of(" \t\n\"'/=;") != std::string::npos || host.name.starts_with('-');
  if (host.name.empty() || has_odd) {
    fail_input("--hosts \"{}\": \"{}\" is no name of a host; {}", all, host.name, kHostsExample);
  }
  if (colon == std::string_view::npos) return host;
  const std::string_view slots = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(slots.data(), slots.data() + slots.size(), host.slots);
  const bool is_number = error == std::errc() && end == slots.data() + slots.size();
  if (!is_number || host.slots < 1 || host.slots > kMostSlots) {
    fail_input("--hosts \"{}\": {} has \"{}\" slots, not a number from 1 to {}; {}", all, host.name, slots, kMostSlots,
               kHostsExample);
  }
  return host;
}

// All other options of train take a value.
constexpr std::array<std::string_view, 2> kFlags = {"--overwrite", "--fallback"};

}  // namespace

std::vector<Host> parse_hosts(std::string_view text) {
  std::vector<Host> hosts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const Host host = parse_host(text.substr(begin, end - begin), text);
    for (const Host& other : hosts) {
      if (other.name == host.name) {
        fail_input("--hosts \"{}\": {} is named twice; write {}:{}", text, host.name, host.name,
                   other.slots + host.slots);
      }
    }
    hosts.push_back(host);
    begin = end + 1;
  }
  return hosts;
}

std::string to_text(const std::vector<Host>& hosts) {
  std::string text;
  for (const Host& host : hosts) text += fmt::format("{}{}:{}", text.empty() ? "" : ",", host.name, host.slots);
  return text;
}

int count_slots(const std::vector<Host>& hosts) {
  int slots = 0;
  for (const Host& host : hosts) slots += host.slots;
  return slots;
}

Words split_words(std::string_view text) {
  Words words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i], next = i + 1 < text.size() ? text[i + 1] : '\0';
    const bool is_blank = c == ' ' || c == '\t' || c == '\n';
    if (quote == 0 && is_blank) {
      if (in_word) words.push_back(std::exchange(word, {}));
      in_word = false;
      continue;
    }
    in_word = true;  // '' is a word too
    const bool escapes = c == '\\' && (quote == 0 ? next != '\0' : quote == '"' && (next == '"' || next == '\\'));
    if (escapes) {
      word += next;
      ++i;
    } else if (c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else {
      word += c;
    }
  }
  if (quote != 0)
    fail_input("--launcher {}: the quote {} is not closed; write e.g. --launcher 'mpirun -x PATH'", text, quote);
  if (in_word) words.push_back(word);
  return words;
}

Launcher::Launcher(Words words) : words_(std::move(words)) {
  const std::string as_root = "--allow-run-as-root";
  const bool says_so = std::find(words_.begin(), words_.end(), as_root) != words_.end();
  if (::geteuid() == 0 && !says_so) words_.push_back(as_root);
}

Words Launcher::launch(int workers, const std::vector<Host>& hosts, const std::string& program,
                       const Words& arguments) const {
  Words command = words_;
  if (workers > 0) command.insert(command.end(), {"-n", std::to_string(workers)});
  if (!hosts.empty()) command.insert(command.end(), {"--host", to_text(hosts)});
  command.push_back(program);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

Words Launcher::probe(const Host& host) const { return launch(1, {{host.name, 1}}, "true", {}); }

TrainCommand::TrainCommand(Words arguments) : arguments_(std::move(arguments)) {
  for (size_t i = 1; i < arguments_.size(); ++i) {  // the first is "train"
    const std::string& word = arguments_[i];
    if (!word.starts_with("--")) {
      job_ = word;
      continue;
    }
    if (std::find(kFlags.begin(), kFlags.end(), word) != kFlags.end()) continue;
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const bool value_follows = equals == std::string::npos && i + 1 < arguments_.size();
    const std::string value = value_follows                 ? arguments_[i + 1]
                              : equals == std::string::npos ? ""
                                                            : word.substr(equals + 1);
    if (name == "--out") {
      has_out_ = true;
    } else if (name == "--resume") {
      resumes_ = value;
    } else {
      kept_.push_back(word);
      if (value_follows) kept_.push_back(value);
    }
    if (value_follows) ++i;
  }
}

Words TrainCommand::from_the_beginning() const {
  Words words = arguments_;
  const bool overwrites = std::find(words.begin(), words.end(), "--overwrite") != words.end();
  if (has_out_ && !overwrites) words.emplace_back("--overwrite");
  return words;
}

Words TrainCommand::from_checkpoint(const std::string& run, bool with_job) const {
  Words words{arguments_.at(0)};
  if (with_job && !job_.empty()) words.push_back(job_);
  words.insert(words.end(), {"--resume", run, "--fallback"});
  words.insert(words.end(), kept_.begin(), kept_.end());
  return words;
}

const Words& replan_settings() {
  static const Words words = [] {
    Words all;
    for (const char* setting : {"parallel.mode=auto", "parallel.placement=", "parallel.cuts=[]",
                                "parallel.stage_weights=", "parallel.shares=", "parallel.versions=[]",
                                "parallel.ahead=[]", "parallel.stage_file="}) {
      all.insert(all.end(), {"--set", setting});
    }
    return all;
  }();
  return words;
}

}  // namespace millrace::cli
