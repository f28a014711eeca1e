// profile.json: what is written is read back exactly, and what is wrong is named.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "millrace/profile/profile.h"

namespace millrace::profile {
namespace {

using testing::HasSubstr;

Profile example() {
  Profile profile;
  profile.model = "tiny \"quoted\"";
  profile.device = "a processor, 2 threads";
  profile.rows = 8;
  profile.step_s = 0.1 + 0.2;
  profile.operators = {
      {"conv1",
       "conv2d",
       {1.0 / 3, 1e-9},
       {0, 0},
       {2.5e-7, 0.125},
       {1e-300, 0},
       4096,
       4096,
       128,
       {77, 0, 5},
       "winograd - direct"},
      {"relu", "relu", {1e-6, 0}, {1e-6, 0}, {}, {}, int64_t{1} << 53, 0, 0, {}, "loop loop -"},
      {"fc", "linear", {1, 2}, {3, 4}, {5, 6}, {7, 8}, 1, 2, 3, {4, 5, 6}, ""},
  };
  profile.edges = {{0, 1}, {0, 2}, {1, 2}};
  profile.ties = {{0, 2}};
  return profile;
}

TEST(ProfileJson, RoundTripIsExact) {
  EXPECT_EQ(parse_profile(to_json(example()), "p.json"), example());
  EXPECT_EQ(to_json(parse_profile(to_json(example()), "p.json")), to_json(example()));
}

TEST(ProfileJson, HasOneLinePerOperator) {
  const std::string text = to_json(example());
  EXPECT_THAT(text, HasSubstr("\n    {\"name\": \"fc\", \"kind\": \"linear\", \"forward_s\": [1.0, 2.0], "));
  EXPECT_THAT(text, HasSubstr("\"edges\": [[0, 1], [0, 2], [1, 2]]"));
}

// The message for the example after `change`.
template <typename Change>
std::string refused(Change&& change) {
  auto document = nlohmann::json::parse(to_json(example()));
  change(document);
  try {
    parse_profile(document.dump(), "p.json");
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    EXPECT_EQ(std::string(error.what()).rfind("p.json", 0), 0u) << error.what();
    return error.what();
  }
  return "accepted";
}

TEST(ProfileJson, MistakesAreNamed) {
  using nlohmann::json;
  EXPECT_THAT(refused([](json& d) { d["operators"] = json::array(); }), HasSubstr("no operators"));
  EXPECT_THAT(refused([](json& d) { d["operators"] = 3; }), HasSubstr("operators is \"3\", not a list"));
  EXPECT_THAT(refused([](json& d) { d["operators"][2]["input_grad_s"][1] = -1; }),
              HasSubstr("operator 2 (\"fc\"): input_grad_s is -1; time is 0 or more"));
  EXPECT_THAT(refused([](json& d) { d["operators"][0]["forward_s"] = 1.5; }), HasSubstr("write [median, spread]"));
  EXPECT_THAT(refused([](json& d) { d["operators"][0]["kept_bytes"] = -4; }), HasSubstr("kept_bytes is -4"));
  EXPECT_THAT(refused([](json& d) { d["operators"][0]["kept_bytes"] = 1.5; }), HasSubstr("not a whole number"));
  EXPECT_THAT(refused([](json& d) { d["operators"][0].erase("kind"); }), HasSubstr("kind is missing"));
  EXPECT_THAT(refused([](json& d) { d["operators"][0]["forward"] = 0; }), HasSubstr("did you mean forward_s?"));
  EXPECT_THAT(refused([](json& d) { d["operators"][1] = "relu"; }), HasSubstr("operator 1: is \"relu\""));
  EXPECT_THAT(refused([](json& d) { d["edges"][1] = {0, 3}; }), HasSubstr("operators 0 to 2"));
  EXPECT_THAT(refused([](json& d) { d["edges"][1] = {-1, 2}; }), HasSubstr("names operator -1"));
  EXPECT_THAT(refused([](json& d) { d["edges"][2] = {2, 1}; }), HasSubstr("edge 2: [2, 1] goes backwards"));
  EXPECT_THAT(refused([](json& d) { d["edges"][2] = {1, 1}; }), HasSubstr("goes backwards"));
  EXPECT_THAT(refused([](json& d) { d["edges"][0] = {0, 1, 2}; }), HasSubstr("write [from, to]"));
  EXPECT_THAT(refused([](json& d) { d["rows"] = 0; }), HasSubstr("rows is 0; write 1 or more"));
  EXPECT_THAT(refused([](json& d) { d["step_s"] = -0.5; }), HasSubstr("step_s is -0.5"));
  EXPECT_THAT(refused([](json& d) { d["version"] = 1; }), HasSubstr("version is 1"));
  EXPECT_THAT(refused([](json& d) { d["format"] = "plan"; }), HasSubstr("format is \"plan\""));
  EXPECT_THAT(refused([](json& d) { d = 5; }), HasSubstr("p.json: is \"5\""));
}

TEST(ProfileJson, TextThatIsNoJsonIsRefusedWithItsLine) {
  const auto message = [](const std::string& text) {
    try {
      parse_profile(text, "p.json");
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(message(""), HasSubstr("p.json:1: not JSON"));
  EXPECT_THAT(message("{\n\n]"), HasSubstr("p.json:3: not JSON"));
  EXPECT_THAT(message("{\"step_s\": 1e999}"), HasSubstr("too large"));
}

}  // namespace
}  // namespace millrace::profile
