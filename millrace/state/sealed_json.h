// JSON text that shows whether it was changed: its last member, "xxh3", is the checksum of every byte before that
// member. What comes after the checksum is fixed, so a change of any byte is seen.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace millrace::state {

// Of an object with at least one member. Throws nlohmann::json::exception if a text in it is not UTF-8.
std::string sealed(const nlohmann::ordered_json& object);

// Throws std::invalid_argument with one line that begins with `name`.
void check_seal(const std::string& text, const std::string& name);

// Of text from anywhere, sealed or not: an object in which no key is there twice, nested at most `deepest` deep. Throws
// std::invalid_argument.
nlohmann::json parse_object(const std::string& text, int deepest, const std::string& name);

}  // namespace millrace::state
