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
using HeldTensors = std::array<std::map<std::string, Held>, state::kKinds.size()>;

HeldTensors share_holdings(comm::Process& process, const state::Names& own) {
  json names = json::array();
  for (const auto& of_kind : own) {
    json& shapes = names.emplace_back(json::object());
    for (const auto& [name, shape] : of_kind) shapes[name] = std::vector<int64_t>(shape.begin(), shape.end());
  }
  HeldTensors held;
  const std::vector<json> all = share(process, names);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    for (size_t kind = 0; kind < held.size(); ++kind) {
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

// Of each process, the tensors that it wants and does not have.
using NeededNames = std::array<std::set<std::string>, state::kKinds.size()>;

std::vector<NeededNames> share_needs(comm::Process& process, const HeldTensors& held, const StateEnd& end) {
  json names = json::array();
  for (size_t kind = 0; kind < held.size(); ++kind) {
    json& needed = names.emplace_back(json::array());
    for (const auto& [name, tensor] : held[kind]) {
      if (!end.has[kind].contains(name) && end.wants(kind, name)) needed.push_back(name);
    }
  }
  std::vector<NeededNames> needs;
  for (const json& one : share(process, names)) {
    NeededNames& needed = needs.emplace_back();
    for (size_t kind = 0; kind < needed.size(); ++kind) needed[kind] = one[kind].get<std::set<std::string>>();
  }
  return needs;
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

Exchanged exchange_state(comm::Process& process, const StateEnd& end, const State& rest) {
  const HeldTensors held = share_holdings(process, end.has);
  const std::vector<NeededNames> needs = share_needs(process, held, end);
  Exchanged exchanged;
  // In one order everywhere: of all that is left to do, the first can always be done.
  for (size_t kind = 0; kind < held.size(); ++kind) {
    for (const auto& [name, tensor] : held[kind]) {
      for (int to = 0; to < process.size(); ++to) {
        if (!needs[to][kind].contains(name)) continue;
        const int sender = tensor.ranks[static_cast<size_t>(to) % tensor.ranks.size()];  // replicas take turns
        exchanged.moved_bytes += tensor.shape.elements() * static_cast<int64_t>(sizeof(float));
        if (sender == process.rank()) process.send(to, std::as_bytes(end.read(kind, name)));
        if (to != process.rank()) continue;
        process.receive(sender, std::as_writable_bytes(end.room(kind, name, tensor.shape)));
        end.come(kind, name);
      }
    }
  }
  exchanged.rest = share_rest(process, rest);
  return exchanged;
}

ExchangedState exchange_state(comm::Process& process, State own, const Session::Wanted& wanted) {
  State all;  // its tensors; what else there is stays in `own`
  StateEnd end;
  for (size_t kind = 0; kind < state::kKinds.size(); ++kind) {
    (all.*state::kKinds[kind]).swap(own.*state::kKinds[kind]);
    for (const auto& [name, tensor] : all.*state::kKinds[kind]) end.has[kind][name] = tensor.shape;
  }
  own.older.clear();
  end.wants = [&](size_t, const std::string& name) { return wanted(name); };
  end.read = [&](size_t kind, const std::string& name) {
    return std::span<const float>((all.*state::kKinds[kind]).at(name).data);
  };
  end.room = [&](size_t kind, const std::string& name, const Shape& shape) {
    state::Tensor& tensor = (all.*state::kKinds[kind])[name];
    tensor.shape = shape;
    tensor.data.resize(static_cast<size_t>(shape.elements()));
    return std::span<float>(tensor.data);
  };
  end.come = [](size_t, const std::string&) {};
  Exchanged exchanged = exchange_state(process, end, own);
  for (const auto kind : state::kKinds) {
    std::erase_if(all.*kind, [&](const auto& one) { return !wanted(one.first); });
    (exchanged.rest.*kind).swap(all.*kind);
  }
  return {std::move(exchanged.rest), exchanged.moved_bytes};
}

}  // namespace millrace::runtime
