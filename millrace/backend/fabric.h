// Joins the devices of several processes directly, so that what one sends another does not pass through the host. Only
// carries: who sends what when is arranged elsewhere (comm/device_endpoint.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace millrace::backend {

// Not for several threads at once, but for any. Whoever joins a lane waits for its other members, so all processes join
// theirs in one order. After that no call waits.
class Fabric {
 public:
  // A lane's: made by one member, and told to the others by other means.
  using Id = std::array<std::byte, 128>;

  virtual ~Fabric() = default;

  virtual std::string name() const = 0;  // and version
  // Of the device. Two processes on the same one cannot be joined.
  virtual std::string device() const = 0;
  // That can be under way without one waiting for what another waits for.
  virtual int most_lanes() const = 0;

  virtual Id make_id() = 0;
  // Each returns the lane's number here. From one device to another, what is sent comes in the order in which it was
  // sent, and a send may last until its receive is under way.
  virtual int join_pair(const Id& id, bool sends) = 0;
  virtual int join_group(const Id& id, int member, int members) = 0;
  // Of the device, taken by the lanes so far.
  virtual int64_t memory_bytes() const { return 0; }

  // What is under way has a number until done() says that it has arrived. Memory is used until then.
  virtual int send(int pair, const void* data, size_t bytes) = 0;
  virtual int receive(int pair, void* data, size_t bytes) = 0;
  // In every member's data, added in the order of the members. All start the sums of a group in one order.
  virtual int sum(int group, std::span<float> data) = 0;
  virtual bool done(int flight) = 0;

  // Ends what is under way, wherever it is. Nothing but the end follows.
  virtual void abort() = 0;
};

}  // namespace millrace::backend
