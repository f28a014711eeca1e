#include "millrace/runtime/state_exchange.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace millrace::runtime {
namespace {

using nlohmann::json;
using state::State;
using Tensors = std::map<std::string, state::Tensor>;

constexpr std::array kKinds = {&State::params, &State::velocity, &State::second_moment};

// What every process says, told to every process.
std::vector<json> share(comm::Process& process, const json& own) {
  json all = json::array();
  for (const std::string& text : process.gather(own.dump())) all.push_back(json::parse(text));
  return json::parse(process.broadcast(all.dump()));
}

// A tensor of one kind, and the processes that have it.
struct Held {
  Shape shape;
  std::vector<int> ranks;
};
using HeldTensors = std::array<std::map<std::string, Held>, kKinds.size()>;

HeldTensors share_holdings(comm::Process& process, const State& own) {
  json names = json::array();
  for (const auto kind : kKinds) {
    json& shapes = names.emplace_back(json::object());
    for (const auto& [name, tensor] : own.*kind) {
      shapes[name] = std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end());
    }
  }
  HeldTensors held;
  const std::vector<json> all = share(process, names);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    for (size_t kind = 0; kind < kKinds.size(); ++kind) {
      for (const auto& [name, extents] : all[rank][kind].items()) {
        Held& tensor = held[kind][name];
        tensor.shape = {};
        for (const int64_t extent : extents) tensor.shape.append(extent);
        tensor.ranks.push_back(static_cast<int>(rank));
      }
    }
  }
  return held;
}

// Of each process, the parameters that it wants.
std::vector<std::set<std::string>> share_wants(comm::Process& process, const HeldTensors& held,
                                               const Session::Wanted& wanted) {
  json names = json::array();
  for (const auto& [name, tensor] : held[0]) {
    if (wanted(name)) names.push_back(name);
  }
  std::vector<std::set<std::string>> wants;
  for (const json& one : share(process, names)) wants.push_back(one.get<std::set<std::string>>());
  return wants;
}

// What is small: from all, for all. What belongs to no parameter is process 0's.
State share_rest(comm::Process& process, const State& own) {
  State all;
  for (const std::string& bytes : process.gather(state::to_bytes(own))) {
    State part = state::state_from_bytes(bytes);
    merge(all, part);
  }
  all.step = own.step;
  all.samples = own.samples;
  all.since = own.since;
  return state::state_from_bytes(process.broadcast(state::to_bytes(all)));
}

}  // namespace

ExchangedState exchange_state(comm::Process& process, State own, const Session::Wanted& wanted) {
  const HeldTensors held = share_holdings(process, own);
  const std::vector<std::set<std::string>> wants = share_wants(process, held, wanted);
  ExchangedState exchanged;
  // In one order everywhere: of all that is left to do, the first can always be done.
  for (size_t kind = 0; kind < kKinds.size(); ++kind) {
    Tensors& tensors = own.*kKinds[kind];
    for (const auto& [name, tensor] : held[kind]) {
      const std::vector<int>& from = tensor.ranks;
      for (int to = 0; to < process.size(); ++to) {
        if (!wants[to].contains(name) || std::binary_search(from.begin(), from.end(), to)) continue;
        const int sender = from[static_cast<size_t>(to) % from.size()];  // replicas take turns
        exchanged.moved_bytes += tensor.shape.elements() * static_cast<int64_t>(sizeof(float));
        if (sender == process.rank()) process.send(to, std::as_bytes(std::span(tensors.at(name).data)));
        if (to != process.rank()) continue;
        state::Tensor& mine = tensors[name];
        mine.shape = tensor.shape;
        mine.data.resize(static_cast<size_t>(tensor.shape.elements()));
        process.receive(sender, std::as_writable_bytes(std::span(mine.data)));
      }
    }
    (exchanged.state.*kKinds[kind]).swap(tensors);
  }
  own.older.clear();
  State rest = share_rest(process, own);
  for (const auto kind : kKinds) {
    (rest.*kind).swap(exchanged.state.*kind);
    std::erase_if(rest.*kind, [&](const auto& one) { return !wants[process.rank()].contains(one.first); });
  }
  exchanged.state = std::move(rest);
  return exchanged;
}

}  // namespace millrace::runtime
