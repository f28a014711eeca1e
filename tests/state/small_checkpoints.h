// States and checkpoints for tests: small, with everything that a state can have.
#pragma once

#include <filesystem>
#include <limits>
#include <string>

#include "millrace/state/checkpoint.h"
#include "millrace/state/checkpoint_store.h"

namespace millrace::state {

inline const std::string kJob = "name: small\nmodel: {name: resnet18}\n";

inline State small_state() {
  using Limits = std::numeric_limits<float>;
  State state;
  state.params = {
      {"bias", {{3}, {1, -0.0f, Limits::denorm_min()}}},
      {"conv.weight", {{2, 1, 2, 1, 2}, {1, 2, 3, 4, 5, 6, 7, 8}}},
      {"empty", {{0, 3}, {}}},
      {"h.0.attn.bias", {{2}, {5, 6}}},  // files of weights from elsewhere have such for a constant
      {"linear.weight", {{2, 3}, {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity(), Limits::max(), 0, -1}}},
      {"patches.weight", {{1, 2, 1, 2}, {1, 2, 3, 4}}},
      {"planes", {{2, 1, 1}, {8, 9}}},
      {"scalar", {{}, {42}}}};
  state.velocity = {{"bias", {{3}, {1e-40f, 2, 3}}}, {"scalar", {{}, {-7}}}};
  state.second_moment = {{"bias", {{3}, {4, 5, 6}}}};
  state.watched = {{"bias", {{1}, {0.5f}}}};
  state.older = {{{"bias", {{3}, {7, 8, 9}}}, {"scalar", {{}, {41}}}}, {{"scalar", {{}, {40}}}}};
  for (const auto& [name, tensor] : state.params) state.updates[name] = 499;
  state.loss_scale = {65536, 17, 0.1f};
  state.step = 500;
  state.samples = 16000;
  state.since = {1, 1};
  return state;
}

inline Manifest small_manifest(const State& state) {
  Manifest manifest;
  manifest.step = state.step;
  manifest.samples = state.samples;
  manifest.since = state.since;
  manifest.epoch = 1.0 / 3;
  manifest.train_samples = 48000;
  manifest.loss_scale = state.loss_scale;
  manifest.plan = "2 stages \u00d7 1 replica, \"1f1b\"";
  manifest.figures = {{"accuracy", 0.1}, {"loss", 2.5}};
  return manifest;
}

// All in one part.
inline void write_checkpoint(const std::filesystem::path& directory, const State& state) {
  Manifest manifest = small_manifest(state);
  manifest.shards = write_shards(directory, 0, state);
  write_manifest(directory, manifest, kJob);
}

inline std::filesystem::path save(CheckpointStore& store, int64_t step) {
  State state = small_state();
  state.step = step;
  write_checkpoint(store.begin(step), state);
  return store.finish(step);
}

}  // namespace millrace::state
