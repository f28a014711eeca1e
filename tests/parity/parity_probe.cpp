// Trains a model on one fixed batch from a file and writes what another implementation can be compared with:
// parity_probe <model> <classes> <image> <batch> <steps> <lr> <in.safetensors> <out.safetensors> [--winograd auto|off]
// Writes `loss` (per step) and `grad.<name>` of the first step: the velocity after it, since that starts at zero.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "millrace/graph/fuse.h"
#include "millrace/model/model.h"
#include "millrace/runtime/device.h"
#include "millrace/runtime/session.h"
#include "millrace/state/safetensors.h"

using namespace millrace;

int main(int argc, char** argv) {
  if (argc != 9 && argc != 11) {
    fmt::print(stderr, "parity_probe: takes 8 arguments and optionally --winograd auto|off\n");
    return 2;
  }
  job::Job job;
  job.model = {.name = argv[1], .classes = std::stoi(argv[2]), .image_size = std::stoi(argv[3]), .dropout = 0};
  job.batch = std::stoll(argv[4]);
  const int64_t steps = std::stoll(argv[5]);
  const double lr = std::stod(argv[6]);
  job.optimizer.momentum = 0.9;
  if (argc == 11 && std::string(argv[10]) == "off") job.backend.winograd = job::Winograd::Off;

  const graph::Graph graph = graph::fuse(model::build(job.model, job.batch, 0.0));
  state::TensorFile file = state::read_safetensors(argv[7]);
  const auto images = file.tensors.extract("__images__").mapped();
  const auto labels = file.tensors.extract("__labels__").mapped();
  state::State state;
  state.params = std::move(file.tensors);

  const auto backend = runtime::make_backend(job, runtime::thread_count(job));
  runtime::Session session(graph, *backend, {.evaluates = false});
  session.load(state);
  std::copy(images.data.begin(), images.data.end(), static_cast<float*>(session.features()));
  std::copy(labels.data.begin(), labels.data.end(), session.labels());

  std::map<std::string, state::Tensor> out;
  state::Tensor losses{{steps}, {}};
  for (int64_t step = 0; step < steps; ++step) {
    const auto metrics = session.train_step(step, job.batch, lr, [&](int) { return job.batch; });
    losses.data.push_back(static_cast<float>(metrics.loss()));
    if (step > 0) continue;
    state::State after;
    session.store(after);
    for (auto& [name, velocity] : after.velocity) out["grad." + name] = std::move(velocity);
  }
  out["loss"] = std::move(losses);
  state::write_safetensors(argv[8], out);
}
