// A fabric of files that stands in for NCCL, between threads and between processes. It keeps to what is hard about the
// original: whoever joins waits for the other members, lanes keep an order, and a send occupies its lane until its
// receive takes it.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "millrace/backend/memory.h"

namespace millrace::comm {

class FileFabric : public backend::Fabric {
 public:
  // The folder is the same for all. Two of the same device cannot be joined.
  FileFabric(std::filesystem::path folder, std::string device)
      : folder_(std::move(folder)), device_(std::move(device)) {}

  std::string name() const override { return "files"; }
  std::string device() const override { return device_; }
  int most_lanes() const override { return 100; }

  Id make_id() override {
    static std::atomic<uint64_t> count{0};
    Id id{};
    const std::string text = std::to_string(getpid()) + "-" + std::to_string(++count);
    std::memcpy(id.data(), text.c_str(), text.size());
    return id;
  }
  int join_pair(const Id& id, bool sends) override {
    if (breaks == Breaks::Pairs) throw std::runtime_error("the cable is loose");
    return join(id, sends ? 0 : 1, 2);
  }
  int join_group(const Id& id, int member, int members) override {
    if (breaks == Breaks::Groups) throw std::runtime_error("the switch is off");
    return join(id, member, members);
  }

  int send(int pair, const void* data, size_t bytes) override {
    return depart(pair, {.kind = Kind::Send, .from = data, .bytes = bytes});
  }
  int receive(int pair, void* data, size_t bytes) override {
    return depart(pair, {.kind = Kind::Receive, .to = data, .bytes = bytes});
  }
  int sum(int group, std::span<float> data) override {
    return depart(group, {.kind = Kind::Sum, .to = data.data(), .bytes = data.size_bytes()});
  }
  bool done(int flight) override {
    if (aborted) throw std::logic_error("asked after the end");
    for (Lane& lane : lanes_) move(lane);
    return landed_[flight];
  }
  void abort() override { aborted = true; }

  bool aborted = false;
  enum class Breaks { Never, AtOnce, Pairs, Groups } breaks = Breaks::Never;

 private:
  enum class Kind { Send, Receive, Sum };
  struct Flight {
    Kind kind{};
    const void* from = nullptr;
    void* to = nullptr;
    size_t bytes = 0;
    bool begun = false;
    int number = 0;
  };
  struct Lane {
    std::string name;
    int member = 0, members = 2;
    int passed = 0;  // flights
    std::deque<Flight> flights;
  };

  std::filesystem::path file(const Lane& lane, const std::string& what) const { return folder_ / (lane.name + what); }

  int join(const Id& id, int member, int members) {
    lanes_.push_back({std::string(reinterpret_cast<const char*>(id.data())), member, members, 0, {}});
    write(file(lanes_.back(), ".joined" + std::to_string(member)), "", 0);
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (int m = 0; m < members; ++m) {
      while (!std::filesystem::exists(file(lanes_.back(), ".joined" + std::to_string(m)))) {
        if (std::chrono::steady_clock::now() > give_up) throw std::runtime_error("nobody joins");
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    }
    return static_cast<int>(lanes_.size()) - 1;
  }

  int depart(int lane, Flight flight) {
    if (aborted) throw std::logic_error("called after the end");
    flight.number = static_cast<int>(landed_.size());
    landed_.push_back(false);
    lanes_.at(lane).flights.push_back(flight);
    return flight.number;
  }

  // Only the first one of a lane moves.
  void move(Lane& lane) {
    while (!lane.flights.empty()) {
      Flight& flight = lane.flights.front();
      const std::string number = fmt::format(".{}", lane.passed);
      if (flight.kind == Kind::Send) {
        if (!flight.begun) write(file(lane, number), flight.from, flight.bytes);
        flight.begun = true;
        if (std::filesystem::exists(file(lane, number))) return;
      } else if (flight.kind == Kind::Receive) {
        if (!std::filesystem::exists(file(lane, number))) return;
        read(file(lane, number), flight.to, flight.bytes);
        std::filesystem::remove(file(lane, number));
      } else {
        if (!flight.begun) write(file(lane, number + "of" + std::to_string(lane.member)), flight.to, flight.bytes);
        flight.begun = true;
        if (!sum(lane, number, {static_cast<float*>(flight.to), flight.bytes / sizeof(float)})) return;
      }
      landed_[flight.number] = true;
      ++lane.passed;
      lane.flights.pop_front();
    }
  }

  bool sum(const Lane& lane, const std::string& number, std::span<float> data) {
    for (int m = 0; m < lane.members; ++m) {
      if (!std::filesystem::exists(file(lane, number + "of" + std::to_string(m)))) return false;
    }
    std::vector<float> part(data.size());
    for (int m = 0; m < lane.members; ++m) {
      read(file(lane, number + "of" + std::to_string(m)), part.data(), data.size_bytes());
      for (size_t i = 0; i < data.size(); ++i) data[i] = m == 0 ? part[i] : data[i] + part[i];
    }
    return true;
  }

  // Whole, or not at all.
  void write(const std::filesystem::path& path, const void* data, size_t bytes) const {
    const std::filesystem::path beside = path.string() + ".part" + device_;
    std::ofstream(beside, std::ios::binary).write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
    std::filesystem::rename(beside, path);
  }
  static void read(const std::filesystem::path& path, void* data, size_t bytes) {
    if (std::filesystem::file_size(path) != bytes) throw std::runtime_error("received into a wrong place");
    std::ifstream(path, std::ios::binary).read(static_cast<char*>(data), static_cast<std::streamsize>(bytes));
  }

  const std::filesystem::path folder_;
  const std::string device_;
  std::deque<Lane> lanes_;
  std::vector<bool> landed_;
};

// Memory that says it is a device's, and has a fabric.
class JoinedMemory : public backend::Memory {
 public:
  JoinedMemory(std::filesystem::path folder, std::string device, bool has_fabric = true,
               FileFabric::Breaks breaks = FileFabric::Breaks::Never)
      : folder_(std::move(folder)), device_(std::move(device)), has_fabric_(has_fabric), breaks_(breaks) {}

  bool on_host() const override { return false; }
  void copy(void* to, const void* from, size_t bytes) override {
    copied += bytes;
    Memory::copy(to, from, bytes);
  }
  std::unique_ptr<backend::Fabric> make_fabric() override {
    if (breaks_ == FileFabric::Breaks::AtOnce) throw std::runtime_error("there is no plug");
    if (!has_fabric_) return nullptr;
    auto fabric = std::make_unique<FileFabric>(folder_, device_);
    fabric->breaks = breaks_;
    return fabric;
  }
  size_t copied = 0;

 private:
  const std::filesystem::path folder_;
  const std::string device_;
  const bool has_fabric_;
  const FileFabric::Breaks breaks_;
};

// A folder in memory where there is one, for as long as it is needed.
class FabricFolder {
 public:
  FabricFolder() {
    const std::filesystem::path memory = "/dev/shm";
    std::string name =
        ((::access(memory.c_str(), W_OK) == 0 ? memory : std::filesystem::temp_directory_path()) / "fabric-XXXXXX");
    if (!::mkdtemp(name.data())) throw std::runtime_error("no folder for " + name);
    path_ = name;
  }
  ~FabricFolder() { std::filesystem::remove_all(path_); }
  FabricFolder(const FabricFolder&) = delete;
  FabricFolder& operator=(const FabricFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace millrace::comm
