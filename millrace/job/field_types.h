// The kinds of keys that the table in fields.cpp is written with: numbers, flags, texts, choices, and lists of
// numbers or names. Each takes last the path to its member, e.g. &Job::optimizer, &Optimizer::lr.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "millrace/job/fields.h"
#include "millrace/job/text.h"

namespace millrace::job {

// The member that a path of member pointers leads to.
template <typename SomeJob, typename... Path>
auto& follow(SomeJob& job, Path... path) {
  return (job.*....*path);
}

template <typename T>
struct Range {
  T least = 0;
  T most = std::numeric_limits<T>::max();
  bool below_most = false;  // `most` itself is refused

  std::string fault(std::string_view key, T value) const {
    if (value < least) return fmt::format("{} is {}; it must be at least {}", key, value, least);
    if (below_most && value >= most) return fmt::format("{} is {}; it must be below {}", key, value, most);
    if (value > most) return fmt::format("{} is {}; it must be at most {}", key, value, most);
    return {};
  }
};

inline Field named(const std::string& key, const std::string& doc, const std::string& example) {
  Field field;
  field.key = key;
  field.doc = doc;
  field.example = example;
  return field;
}

inline std::string number_fault(const Field& field, NumberFault fault, std::string_view kind, std::string_view text,
                                std::string_view assign) {
  const std::string advice = fmt::format("write e.g. {}{}{}", field.key, assign, field.example);
  switch (fault) {
    case NumberFault::Ok: return {};
    case NumberFault::NotANumber: return fmt::format("{}: {} is not {}; {}", field.key, in_quotes(text), kind, advice);
    case NumberFault::TooLarge:
      return fmt::format("{}: {} is a number out of range; {}", field.key, in_quotes(text), advice);
    case NumberFault::Negative: return fmt::format("{} is {}; it must be at least 0", field.key, trimmed(text));
  }
  return {};
}

template <typename T, typename... Path>
Field number(const std::string& key, Range<T> range, const std::string& example, const std::string& doc, Path... path) {
  Field field = named(key, doc, example);
  constexpr std::string_view kKind = std::is_integral_v<T> ? "a whole number" : "a number";
  field.read = [=, self = field](Job& job, std::string_view text, std::string_view assign) {
    T value{};
    const NumberFault fault = parse_number(trimmed(text), value);
    if (fault == NumberFault::Ok) follow(job, path...) = value;
    return number_fault(self, fault, kKind, text, assign);
  };
  field.write = [=](const Job& job) { return fmt::format("{}", follow(job, path...)); };
  field.fault = [=](const Job& job) { return range.fault(key, follow(job, path...)); };
  return field;
}

// "[a, b]" or "a, b" -> {"a", "b"}.
inline std::vector<std::string_view> list_items(std::string_view text) {
  std::vector<std::string_view> items;
  std::string_view rest = trimmed(text);
  if (rest.starts_with('[') && rest.ends_with(']')) rest = trimmed(rest.substr(1, rest.size() - 2));
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    items.push_back(trimmed(rest.substr(0, comma)));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return items;
}

template <typename T, typename... Path>
Field numbers(const std::string& key, Range<T> range, const std::string& example, const std::string& doc,
              Path... path) {
  Field field = named(key, doc, example);
  field.is_list = true;
  constexpr std::string_view kind = std::is_integral_v<T> ? "a whole number" : "a number";
  field.read = [=, self = field](Job& job, std::string_view text, std::string_view assign) -> std::string {
    std::vector<T> values;
    for (std::string_view item : list_items(text)) {
      const NumberFault fault = parse_number(item, values.emplace_back());
      if (fault != NumberFault::Ok) return number_fault(self, fault, kind, item, assign);
    }
    follow(job, path...) = std::move(values);
    return {};
  };
  field.write = [=](const Job& job) { return fmt::format("[{}]", fmt::join(follow(job, path...), ", ")); };
  field.fault = [=](const Job& job) -> std::string {
    for (T value : follow(job, path...)) {
      if (std::string fault = range.fault(key, value); !fault.empty()) return fault;
    }
    return {};
  };
  return field;
}

// Names as layers have them: they need no quotes, neither in a list nor in YAML.
template <typename... Path>
Field names(const std::string& key, const std::string& example, const std::string& doc, Path... path) {
  Field field = named(key, doc, example);
  field.is_list = true;
  field.read = [=](Job& job, std::string_view text, std::string_view) -> std::string {
    const std::vector<std::string_view> items = list_items(text);
    follow(job, path...).assign(items.begin(), items.end());
    return {};
  };
  field.write = [=](const Job& job) { return fmt::format("[{}]", fmt::join(follow(job, path...), ", ")); };
  field.fault = [=](const Job& job) -> std::string {
    const auto fits = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.' || c == '-'; };
    for (const std::string& name : follow(job, path...)) {
      if (!name.empty() && std::all_of(name.begin(), name.end(), fits)) continue;
      return fmt::format("{} holds {}; a name is letters, digits, '_', '.' and '-': write e.g. {}", key,
                         in_quotes(name), example);
    }
    return {};
  };
  return field;
}

template <typename... Path>
Field flag(const std::string& key, const std::string& doc, Path... path) {
  Field field = named(key, doc, "true");
  field.choices = {"true", "false"};
  field.read = [=](Job& job, std::string_view text, std::string_view) -> std::string {
    text = trimmed(text);
    if (text != "true" && text != "false") {
      return fmt::format("{}: {} is neither true nor false; write one of the two", key, in_quotes(text));
    }
    follow(job, path...) = text == "true";
    return {};
  };
  field.write = [=](const Job& job) { return follow(job, path...) ? "true" : "false"; };
  field.fault = [](const Job&) { return std::string(); };
  return field;
}

template <typename... Path>
Field free_text(const std::string& key, const std::string& example, const std::string& doc, Path... path) {
  Field field = named(key, doc, example);
  field.is_text = true;
  field.read = [=](Job& job, std::string_view text, std::string_view) -> std::string {
    follow(job, path...) = text;
    return {};
  };
  field.write = [=](const Job& job) { return follow(job, path...); };
  field.fault = [=](const Job& job) -> std::string {
    const std::string& text = follow(job, path...);
    const bool odd = std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; });
    return odd ? fmt::format("{} is {}; it must not hold control characters", key, in_quotes(text)) : std::string();
  };
  return field;
}

// A text with a grammar: `parse` throws std::invalid_argument for what does not follow it. Empty is always allowed.
template <typename Parse, typename... Path>
Field grammar(const std::string& key, const std::string& example, const std::string& doc, Parse parse, Path... path) {
  Field field = free_text(key, example, doc, path...);
  field.fault = [=](const Job& job) -> std::string {
    try {
      if (!follow(job, path...).empty()) parse(follow(job, path...));
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return {};
  };
  return field;
}

template <typename... Path>
Field on_or_off(const std::string& key, const std::string& doc, Path... path) {
  Field field = flag(key, doc, path...);
  field.example = "on";
  field.choices = {"on", "off"};
  field.read = [=](Job& job, std::string_view text, std::string_view) -> std::string {
    text = trimmed(text);
    const bool is_on = text == "on" || text == "true";
    if (!is_on && text != "off" && text != "false") {
      return fmt::format("{}: {} is neither on nor off; write one of the two", key, in_quotes(text));
    }
    follow(job, path...) = is_on;
    return {};
  };
  field.write = [=](const Job& job) { return follow(job, path...) ? "on" : "off"; };
  return field;
}

// A number between 0 and 1, neither of them allowed: 0.4 or 2/5.
template <typename... Path>
Field fraction(const std::string& key, const std::string& example, const std::string& doc, Path... path) {
  Field field = number<double>(key, {0, 1, true}, example, doc, path...);
  field.read = [=, self = field](Job& job, std::string_view text, std::string_view assign) -> std::string {
    const size_t slash = text.find('/');
    double above = 0, below = 1;
    NumberFault fault = parse_number(trimmed(text.substr(0, slash)), above);
    if (fault == NumberFault::Ok && slash != std::string_view::npos) {
      fault = parse_number(trimmed(text.substr(slash + 1)), below);
    }
    if (fault == NumberFault::Ok && !(below > 0)) fault = NumberFault::NotANumber;
    if (fault == NumberFault::Ok) follow(job, path...) = above / below;
    return number_fault(self, fault, "a fraction", text, assign);
  };
  field.fault = [=](const Job& job) -> std::string {
    const double value = follow(job, path...);
    if (value > 0 && value < 1) return {};
    return fmt::format("{} is {}; it must be above 0 and below 1", key, value);
  };
  return field;
}

// `later` are choices that will exist: they are refused, but not as if they were misspelt.
template <typename T, typename... Path>
Field choice(const std::string& key, std::vector<std::pair<std::string, T>> names,
             const std::vector<std::string>& later, const std::string& doc, Path... path) {
  Field field = named(key, doc, names.front().first);
  for (const auto& [name, value] : names) field.choices.push_back(name);
  field.read = [=, choices = field.choices](Job& job, std::string_view text, std::string_view assign) -> std::string {
    text = trimmed(text);
    for (const auto& [name, value] : names) {
      if (text != name) continue;
      follow(job, path...) = value;
      return {};
    }
    if (std::find(later.begin(), later.end(), text) != later.end()) {
      return fmt::format("{0} {1} is not built yet in this version; write {0}{2}{3}", key, text, assign, choices[0]);
    }
    const std::string near = nearest(text, choices);
    return fmt::format("{}: {} is not one of {}{}", key, in_quotes(text), fmt::join(choices, ", "),
                       near.empty() ? "" : fmt::format("; did you mean {}?", near));
  };
  field.write = [=](const Job& job) -> std::string {
    for (const auto& [name, value] : names) {
      if (follow(job, path...) == value) return name;
    }
    return {};
  };
  field.fault = [=, choices = field.choices, write = field.write](const Job& job) -> std::string {
    return write(job).empty() ? fmt::format("{} is not one of {}", key, fmt::join(choices, ", ")) : std::string();
  };
  return field;
}

// "500 steps", "10 min", "1 epoch", "off".
template <typename... Path>
Field period(const std::string& key, const std::string& example, const std::string& doc, Path... path) {
  Field field = named(key, doc, example);
  field.read = [=](Job& job, std::string_view text, std::string_view assign) -> std::string {
    using Unit = Period::Unit;
    text = trimmed(text);
    Period read;
    const size_t space = text.find(' ');
    const std::string_view unit = space == std::string_view::npos ? "" : trimmed(text.substr(space));
    if (unit == "step" || unit == "steps") read.unit = Unit::Steps;
    if (unit == "min" || unit == "minute" || unit == "minutes") read.unit = Unit::Minutes;
    if (unit == "epoch" || unit == "epochs") read.unit = Unit::Epochs;
    const bool fits =
        text == "off" || (read.unit != Unit::Off && parse_number(text.substr(0, space), read.count) == NumberFault::Ok);
    if (!fits) {
      return fmt::format("{0}: {1} is no period; write e.g. {0}{2}{3}, 10 min, 1 epoch or off", key, in_quotes(text),
                         assign, example);
    }
    follow(job, path...) = read;
    return {};
  };
  field.write = [=](const Job& job) -> std::string {
    const Period& period = follow(job, path...);
    static constexpr const char* kUnits[] = {"off", "steps", "min", "epochs"};
    const char* unit = kUnits[static_cast<int>(period.unit)];
    return period.unit == Period::Unit::Off ? unit : fmt::format("{} {}", period.count, unit);
  };
  field.fault = [=](const Job& job) -> std::string {
    const Period& period = follow(job, path...);
    if (period.unit == Period::Unit::Off) return {};
    const bool whole =
        period.unit != Period::Unit::Steps || period.count == static_cast<double>(static_cast<int64_t>(period.count));
    if (period.count > 0 && period.count <= 1e12 && whole) return {};
    return fmt::format("{} is {}; it must be more than 0{}", key, period.count,
                       period.unit == Period::Unit::Steps ? " and a whole number of steps" : "");
  };
  return field;
}

}  // namespace millrace::job
