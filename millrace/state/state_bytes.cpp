#include <cstring>

#include "millrace/base/error.h"
#include "millrace/state/state.h"

namespace millrace::state {
namespace {

void put(std::string& out, const void* data, size_t bytes) { out.append(static_cast<const char*>(data), bytes); }

void put_tensors(std::string& out, const std::map<std::string, Tensor>& tensors) {
  const uint64_t count = tensors.size();
  put(out, &count, sizeof count);
  for (const auto& [name, tensor] : tensors) {
    const uint64_t sizes[] = {name.size(), static_cast<uint64_t>(tensor.shape.rank())};
    put(out, sizes, sizeof sizes);
    out += name;
    for (int64_t extent : tensor.shape) put(out, &extent, sizeof extent);
    put(out, tensor.data.data(), tensor.data.size() * sizeof(float));
  }
}

class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}

  void take(void* data, size_t size) {
    if (size == 0) return;  // an empty vector may have no memory at all
    if (size > bytes_.size() - at_) fail_run("a state sent by another process ends after {} bytes", bytes_.size());
    std::memcpy(data, bytes_.data() + at_, size);
    at_ += size;
  }

  std::map<std::string, Tensor> tensors() {
    std::map<std::string, Tensor> tensors;
    uint64_t count = 0;
    take(&count, sizeof count);
    for (uint64_t i = 0; i < count; ++i) {
      uint64_t sizes[2];
      take(sizes, sizeof sizes);
      std::string name(sizes[0], '\0');
      take(name.data(), name.size());
      Tensor& tensor = tensors[name];
      for (uint64_t axis = 0; axis < sizes[1]; ++axis) {
        int64_t extent = 0;
        take(&extent, sizeof extent);
        tensor.shape.append(extent);
      }
      tensor.data.resize(static_cast<size_t>(tensor.shape.elements()));
      take(tensor.data.data(), tensor.data.size() * sizeof(float));
    }
    return tensors;
  }

 private:
  const std::string& bytes_;
  size_t at_ = 0;
};

}  // namespace

std::string to_bytes(const State& state) {
  std::string out;
  put_tensors(out, state.params);
  put_tensors(out, state.velocity);
  put_tensors(out, state.second_moment);
  put_tensors(out, state.watched);
  const uint64_t ages = state.older.size(), counted = state.updates.size();
  put(out, &ages, sizeof ages);
  for (const auto& tensors : state.older) put_tensors(out, tensors);
  put(out, &counted, sizeof counted);
  for (const auto& [name, updates] : state.updates) {
    const int64_t sizes[] = {static_cast<int64_t>(name.size()), updates};
    put(out, sizes, sizeof sizes);
    out += name;
  }
  const uint64_t count = state.loss_scale.size();
  put(out, &count, sizeof count);
  if (count > 0) put(out, state.loss_scale.data(), count * sizeof(float));
  put(out, &state.step, sizeof state.step);
  put(out, &state.samples, sizeof state.samples);
  put(out, &state.since, sizeof state.since);
  return out;
}

State state_from_bytes(const std::string& bytes) {
  Reader reader(bytes);
  State state;
  state.params = reader.tensors();
  state.velocity = reader.tensors();
  state.second_moment = reader.tensors();
  state.watched = reader.tensors();
  uint64_t ages = 0, counted = 0;
  reader.take(&ages, sizeof ages);
  for (uint64_t age = 0; age < ages; ++age) state.older.push_back(reader.tensors());
  reader.take(&counted, sizeof counted);
  for (uint64_t i = 0; i < counted; ++i) {
    int64_t sizes[2];
    reader.take(sizes, sizeof sizes);
    std::string name(static_cast<size_t>(sizes[0]), '\0');
    reader.take(name.data(), name.size());
    state.updates[name] = sizes[1];
  }
  uint64_t count = 0;
  reader.take(&count, sizeof count);
  state.loss_scale.resize(count);
  reader.take(state.loss_scale.data(), count * sizeof(float));
  reader.take(&state.step, sizeof state.step);
  reader.take(&state.samples, sizeof state.samples);
  reader.take(&state.since, sizeof state.since);
  return state;
}

}  // namespace millrace::state
