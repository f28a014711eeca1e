// The memory a device computes in, as others see it. This one is the host's; a device with memory of its own overrides
// all of it. Every call returns when the work is done.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>

#include "millrace/backend/fabric.h"

namespace millrace::backend {

class Memory {
 public:
  virtual ~Memory() = default;

  // Whether the host may read and write it in place.
  virtual bool on_host() const { return true; }

  // Between any two of host and device.
  virtual void copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
  virtual void zero(void* memory, size_t bytes) { std::memset(memory, 0, bytes); }
  virtual void add(float* total, const float* part, size_t count) {
    for (size_t i = 0; i < count; ++i) total[i] += part[i];
  }
  virtual void scale(float* values, size_t count, float factor) {
    for (size_t i = 0; i < count; ++i) values[i] *= factor;
  }

  // What joins it to the devices of other processes; none: they reach each other through the host.
  virtual std::unique_ptr<Fabric> make_fabric() { return nullptr; }
};

}  // namespace millrace::backend
