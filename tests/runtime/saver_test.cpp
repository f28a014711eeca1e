// A checkpoint that is written while training goes on is the state of its step, to the bit: read from the weights as
// they lie, or from a copy in the device's memory.
#include "millrace/runtime/saver.h"

#include <atomic>
#include <chrono>
#include <future>
#include <map>

#include "device/is_emulated.h"
#include "millrace/backend/style.h"
#include "millrace/state/checkpoint.h"
#include "runtime/session_harness.h"
#include "state/temporary_folder.h"

namespace millrace::runtime {
namespace {

namespace fs = std::filesystem;

struct Device {
  std::string name;
  job::Device kind{};
  DType dtype = DType::F32;
  std::unique_ptr<backend::Backend> backend;
};

class SaverTest : public state::TemporaryFolder {
 protected:
  static std::vector<Device> devices() {
    std::vector<Device> found;
    found.push_back({"reference", job::Device::Reference, DType::F32, make("reference")});
    if (auto cpu = make("cpu")) found.push_back({"cpu", job::Device::Cpu, DType::F32, std::move(cpu)});
    return found;
  }
  static std::vector<Device> gpus() {
    std::vector<Device> found;
    for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
      if (dtype != DType::F32 && device::is_emulated()) continue;
      found.push_back({std::string("cuda ") + name_of(dtype), job::Device::Cuda, dtype,
                       backend::make_cuda_backend({.deterministic = true}, kMomentum)});
    }
    return found;
  }

  static void step(Session& session, const graph::Graph& graph) {
    const auto batch = static_cast<size_t>(graph.batch());
    const auto elements = static_cast<size_t>(graph.values[graph.features].shape.elements());
    std::vector<float> features(elements);
    std::vector<int32_t> labels(batch);
    const int64_t number = session.updates();
    const RandomStream random(77, 0, static_cast<uint64_t>(number));
    for (size_t i = 0; i < elements; ++i) features[i] = 2 * uniform(random.at(i / 4)[i % 4]) - 1;
    for (size_t row = 0; row < batch; ++row) labels[row] = static_cast<int32_t>((row + number) % 10);
    session.train_step(number, graph.batch(), 0.05, [&](int) {
      session.put_input(0, features.data(), labels.data());
      return graph.batch();
    });
  }

  static graph::Graph network(DType dtype) {
    return graph::fuse(model::build({.name = "resnet_small", .classes = 10, .image_size = 16}, 4, 0.0, dtype));
  }
  static SessionOptions options_of(const Device& device, int versions) {
    return {.evaluates = false, .copies = {1, 1, versions}, .style = backend::style_of(device.kind)};
  }

  // As process 0 completes it.
  static state::State read(const fs::path& folder, const std::vector<float>& loss_scale) {
    state::write_manifest(folder, {.loss_scale = loss_scale, .shards = state::take_shard_list(folder, 0)}, "job");
    return state::read_state(folder, state::read_manifest(folder));
  }

  void expect_saves_its_step(const Device& device) {
    const graph::Graph graph = network(device.dtype);
    for (const bool copies : {false, true}) {
      for (const int versions : {1, 3}) {
        SCOPED_TRACE(device.name + (copies ? ", copied" : ", in place") + ", versions: " + std::to_string(versions));
        Session session(graph, *device.backend, options_of(device, versions));
        session.load(state::initial_state(graph, 1));
        struct Saved {
          std::vector<float> loss_scale;
          std::string failure;
        };
        std::map<int64_t, std::promise<Saved>> promises;
        // Before anything was recorded, and after; the memory is used again.
        const std::vector<int> saves{1, 4};
        for (const int steps : saves) promises[steps];
        Saver saver(*device.backend, {{0, &session}}, {.ahead = true, .copies = copies},
                    [&](int64_t steps, const std::vector<float>& loss_scale, const std::string& failure) {
                      promises.at(steps).set_value({loss_scale, failure});
                    });
        for (const int steps : saves) {
          std::future<Saved> saved = promises.at(steps).get_future();
          for (int i = 0; i < steps; ++i) step(session, graph);
          const state::State expected = stored(session);
          const fs::path folder = folder_ / (std::to_string(copies) + std::to_string(versions) + std::to_string(steps));
          fs::create_directories(folder);
          saver.save(steps, folder);
          saver.await_copy();
          for (int i = 0; i < 3; ++i) step(session, graph);
          const Saved made = saved.get();
          EXPECT_EQ(made.failure, "");
          EXPECT_TRUE(read(folder, made.loss_scale) == expected) << "after " << steps;
          EXPECT_FALSE(stored(session) == expected);
        }
      }
    }
  }

  // Again and again for as long as tasks are run for the first time, recorded and played.
  static void expect_can_be_read_while_training_goes_on(const Device& device) {
    SCOPED_TRACE(device.name);
    constexpr int kVersions = 3;
    const graph::Graph graph = network(device.dtype);
    backend::Backend& backend = *device.backend;
    Session session(graph, backend, options_of(device, kVersions));
    session.load(state::initial_state(graph, 1));
    const std::unique_ptr<backend::Outlet> outlet = backend.make_outlet();
    auto* copy = static_cast<std::byte*>(backend.allocate(session.state_bytes()));
    step(session, graph);
    const state::State expected = stored(session);
    const Session::Source source = session.copy_state(*outlet, copy);
    outlet->follow();
    std::atomic<bool> done = false;
    std::promise<void> first;
    std::future<void> begun = first.get_future();
    std::future<int> different = std::async(std::launch::async, [&] {
      int wrong = 0;
      try {
        for (bool again = false; !again || !done; again = true) {
          state::State found;
          session.store_forward_state(source, *outlet, found);
          session.store_weights(source, *outlet, found);
          wrong += found == expected ? 0 : 1;
          if (!again) first.set_value();
        }
      } catch (...) {
        done = true;
        throw;
      }
      return wrong;
    });
    begun.wait_for(std::chrono::seconds(60));
    for (int i = 0; i < 4 * kVersions; ++i) step(session, graph);
    done = true;
    EXPECT_EQ(different.get(), 0);
    EXPECT_GE(outlet->copy_s(), 0);
    EXPECT_EQ(session.updates(), 1 + 4 * kVersions);
    backend.release(copy, session.state_bytes());
  }
};

TEST_F(SaverTest, SavesTheStateOfItsStep) {
  for (const Device& device : devices()) expect_saves_its_step(device);
}

TEST_F(SaverTest, ACopyCanBeReadWhileTrainingGoesOn) {
  for (const Device& device : devices()) expect_can_be_read_while_training_goes_on(device);
}

class CudaSaver : public SaverTest {
 protected:
  void SetUp() override {
    if (backend::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    SaverTest::SetUp();
  }
  void TearDown() override {
    if (!folder_.empty()) SaverTest::TearDown();
  }
};

TEST_F(CudaSaver, SavesTheStateOfItsStep) {
  for (const Device& device : gpus()) expect_saves_its_step(device);
}

// What the worker records meanwhile must neither hold the reader up nor be spoilt by it.
TEST_F(CudaSaver, ACopyCanBeReadWhileTasksAreRecorded) {
  for (const Device& device : gpus()) expect_can_be_read_while_training_goes_on(device);
}

}  // namespace
}  // namespace millrace::runtime
