// A session's numbers in and out, by the names of parameters.
#include <algorithm>

#include "millrace/base/error.h"
#include "millrace/runtime/session.h"

namespace millrace::runtime {

using graph::BufferId;
using graph::BufferRole;
using graph::Program;

namespace {

// In state::kKinds: where a buffer of a role has its numbers from, and puts them.
size_t kind_of(BufferRole role) { return role == BufferRole::Velocity ? 1 : role == BufferRole::SecondMoment ? 2 : 0; }

template <typename State>
auto& tensors_of(BufferRole role, State& state) {
  return state.*state::kKinds[kind_of(role)];
}

bool is_of_state(const graph::Buffer& buffer) {
  return buffer.param != graph::kNone && is_persistent(buffer.role) && !is_kept_gradient(buffer.role);
}

}  // namespace

void Session::load(const state::State& state) {
  const Program& program = train_.program;
  // Versions count from 0: the oldest that is known and wanted.
  auto ages_of = [&](const std::string& name) {
    int64_t ages = 0;
    while (ages < static_cast<int64_t>(state.older.size()) && state.older[ages].contains(name)) ++ages;
    return std::min<int64_t>(ages, options_.copies.versions - 1);
  };
  updates_ = updates_before_ = 0;
  for (const graph::Buffer& buffer : program.buffers) {
    if (buffer.role != BufferRole::Weight) continue;
    const std::string& name = graph_.params[buffer.param].name;
    updates_ = std::max(updates_, ages_of(name));
    if (const auto found = state.updates.find(name); found != state.updates.end()) {
      updates_before_ = std::max(updates_before_, found->second);
    }
  }
  updates_before_ -= updates_;

  for (BufferId id = 0; id < static_cast<BufferId>(program.buffers.size()); ++id) {
    const graph::Buffer& buffer = program.buffers[id];
    if (!is_of_state(buffer)) continue;
    const std::string& name = graph_.params[buffer.param].name;
    const auto& tensors = tensors_of(buffer.role, state);
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      if (!is_optimizer_slot(buffer.role)) fail_run("the state has no parameter {}", name);
      backend_.zero(address(0, id, {}), train_.buffer_bytes[id]);
      continue;
    }
    const auto upload = [&](const state::Tensor& tensor, int version) {
      if (tensor.shape != buffer.shape) {
        fail_input("the state has {} {} where the model has {}", name, tensor.shape.str(), buffer.shape.str());
      }
      backend_.upload(graph_, program, id, tensor.data, address(0, id, {0, 0, version}));
    };
    const bool has_versions = buffer.role == BufferRole::Weight;
    upload(found->second, has_versions ? ring(updates_) : 0);
    for (int64_t age = 1; has_versions && age <= updates_; ++age) {
      const int64_t known = std::min(age, ages_of(name));
      const state::Tensor& older = known == 0 ? found->second : state.older[known - 1].at(name);
      upload(older, ring(updates_ - age));
    }
  }
  load_position(state);
}

// What belongs to no parameter alone.
void Session::load_position(const state::State& state) {
  const Program& program = train_.program;
  if (watches()) {
    std::vector<float> squares(graph_.params.size(), 0.0f);
    for (size_t param = 0; param < squares.size(); ++param) {
      const auto found = state.watched.find(graph_.params[param].name);
      if (found != state.watched.end()) squares[param] = found->second.data.at(0);
    }
    put_watched(squares);
  }
  if (!has_agreement()) return;
  std::vector<float> fields(static_cast<size_t>(program.buffers[program.agreement].shape[0]), 0.0f);
  const bool known = state.loss_scale.size() == 3;
  fields[graph::kScale] = known ? state.loss_scale[0] : static_cast<float>(options_.loss_scale);
  fields[graph::kInverseScale] = 1 / fields[graph::kScale];
  fields[graph::kGoodSteps] = known ? state.loss_scale[1] : 0;
  fields[graph::kSkippedSteps] = known ? state.loss_scale[2] : 0;
  fields[graph::kClip] = 1;
  backend_.upload(graph_, program, program.agreement, fields, address(0, program.agreement, {}));
}

void Session::touch() { backend_.zero(memory_block_ + layout_->state_offset(), layout_->state_bytes()); }

void Session::load_from(const std::vector<const Session*>& before, const state::State& position,
                        const state::Names& come) {
  updates_ = updates_before_ = 0;
  for (const auto& [name, updates] : position.updates) updates_before_ = std::max(updates_before_, updates);
  const Program& program = train_.program;
  std::vector<float> plain;
  for (BufferId id = 0; id < static_cast<BufferId>(program.buffers.size()); ++id) {
    const graph::Buffer& buffer = program.buffers[id];
    if (!is_of_state(buffer)) continue;
    const std::string& name = graph_.params[buffer.param].name;
    const size_t kind = kind_of(buffer.role);
    bool found = come[kind].contains(name);
    for (const Session* session : before) {
      if (found) break;
      const BufferId from = session->state_buffer(kind, name);
      if (from == graph::kNone) continue;
      found = true;
      const backend::Backend::Foreign foreign{session->backend_, session->graph_, session->train_.program, from,
                                              session->address(0, from, {0, 0, session->ring(session->updates_)})};
      if (backend_.take(foreign, graph_, program, id, address(0, id, {}))) continue;
      session->read(kind, name, plain);
      backend_.upload(graph_, program, id, plain, address(0, id, {}));
    }
    if (found) continue;
    if (!is_optimizer_slot(buffer.role)) fail_run("the training before has no parameter {}", name);
    backend_.zero(address(0, id, {}), train_.buffer_bytes[id]);
  }
  load_position(position);
}

void Session::store_position(state::State& state) const {
  const std::vector<float> squares = watched();
  for (const graph::Buffer& buffer : train_.program.buffers) {
    if (buffer.role != BufferRole::Weight) continue;
    const std::string& name = graph_.params[buffer.param].name;
    state.updates[name] = updates_before_ + updates_;
    if (!squares.empty()) state.watched[name] = {{1}, {squares[static_cast<size_t>(buffer.param)]}};
  }
  if (!has_agreement() || graph_.dtype != DType::F16) return;
  const std::vector<float> fields = read_buffer(train_.program.agreement);
  state.loss_scale = {fields[graph::kScale], fields[graph::kGoodSteps], fields[graph::kSkippedSteps]};
}

// Where the numbers of a tensor lie here: a weight may stand still here and not there.
BufferId Session::state_buffer(size_t kind, const std::string& name) const {
  BufferId found = graph::kNone;
  for (BufferId id = 0; id < static_cast<BufferId>(train_.program.buffers.size()); ++id) {
    const graph::Buffer& buffer = train_.program.buffers[id];
    if (!is_of_state(buffer) || kind_of(buffer.role) != kind || graph_.params[buffer.param].name != name) continue;
    if (buffer.role == BufferRole::Master) return id;
    if (buffer.role == BufferRole::Weight && is_half(graph_.dtype)) continue;  // its master has all digits
    found = id;
  }
  return found;
}

void Session::list(state::Names& names) const {
  for (const graph::Buffer& buffer : train_.program.buffers) {
    if (is_of_state(buffer)) names[kind_of(buffer.role)][graph_.params[buffer.param].name] = buffer.shape;
  }
}

bool Session::wants(size_t kind, const std::string& name) const {
  return std::any_of(train_.program.buffers.begin(), train_.program.buffers.end(), [&](const graph::Buffer& buffer) {
    return is_of_state(buffer) && kind_of(buffer.role) == kind && graph_.params[buffer.param].name == name;
  });
}

bool Session::read(size_t kind, const std::string& name, std::vector<float>& plain) const {
  const BufferId id = state_buffer(kind, name);
  if (id == graph::kNone) return false;
  backend::Outlet outlet(backend_);
  read(source(), outlet, id, updates_, plain);
  return true;
}

void Session::put(size_t kind, const std::string& name, const std::vector<float>& plain) {
  for (BufferId id = 0; id < static_cast<BufferId>(train_.program.buffers.size()); ++id) {
    const graph::Buffer& buffer = train_.program.buffers[id];
    if (!is_of_state(buffer) || kind_of(buffer.role) != kind || graph_.params[buffer.param].name != name) continue;
    backend_.upload(graph_, train_.program, id, plain, address(0, id, {}));
  }
}

void Session::store(state::State& state) const {
  backend::Outlet outlet(backend_);
  store_forward_state(source(), outlet, state);
  store_weights(source(), outlet, state);
}

Session::Source Session::source() const { return {memory_block_ + layout_->state_offset(), updates_, updates_before_}; }

Session::Source Session::copy_state(backend::Outlet& outlet, std::byte* to) const {
  Source copied = source();
  outlet.copy(to, copied.memory, state_bytes());
  copied.memory = to;
  return copied;
}

void Session::read(const Source& source, backend::Outlet& outlet, BufferId id, int64_t version,
                   std::vector<float>& plain) const {
  plain.resize(static_cast<size_t>(train_.program.buffers[id].shape.elements()));
  const size_t offset = layout_->offset(0, id, {0, 0, ring(version)}) - layout_->state_offset();
  outlet.download(graph_, train_.program, id, source.memory + offset, plain);
}

void Session::store_forward_state(const Source& source, backend::Outlet& outlet, state::State& state) const {
  const Program& program = train_.program;
  for (BufferId id = 0; id < static_cast<BufferId>(program.buffers.size()); ++id) {
    const graph::Buffer& buffer = program.buffers[id];
    if (buffer.role != BufferRole::Statistic) continue;
    const std::string& name = graph_.params[buffer.param].name;
    state::Tensor& tensor = state.params[name];
    tensor.shape = buffer.shape;
    read(source, outlet, id, source.updates, tensor.data);
    state.updates[name] = source.updates_before + source.updates;
  }
  if (!has_agreement() || graph_.dtype != DType::F16) return;
  std::vector<float> fields;
  read(source, outlet, program.agreement, source.updates, fields);
  state.loss_scale = {fields[graph::kScale], fields[graph::kGoodSteps], fields[graph::kSkippedSteps]};
}

void Session::store_weights(const Source& source, backend::Outlet& outlet, state::State& state,
                            const Wanted& wanted) const {
  const Program& program = train_.program;
  const int64_t updates = source.updates, ages = std::min<int64_t>(updates, options_.copies.versions - 1);
  std::vector<float> squares;
  if (watches()) read(source, outlet, program.watch, updates, squares);
  if (static_cast<int64_t>(state.older.size()) < ages) state.older.resize(static_cast<size_t>(ages));
  for (BufferId id = 0; id < static_cast<BufferId>(program.buffers.size()); ++id) {
    const graph::Buffer& buffer = program.buffers[id];
    if (!is_of_state(buffer)) continue;
    const std::string& name = graph_.params[buffer.param].name;
    if (buffer.role == BufferRole::Statistic || (wanted && !wanted(name))) continue;
    auto put = [&](state::Tensor& tensor, int64_t version) {
      tensor.shape = buffer.shape;
      read(source, outlet, id, version, tensor.data);
    };
    const bool is_weight = buffer.role == BufferRole::Weight;
    if (is_weight) state.updates[name] = source.updates_before + updates;
    if (is_weight && !squares.empty()) state.watched[name] = {{1}, {squares[static_cast<size_t>(buffer.param)]}};
    // Of a weight of sixteen bits the master has all digits.
    const bool has_master = is_half(graph_.dtype) && !graph_.params[buffer.param].is_statistic() &&
                            (is_weight || buffer.role == BufferRole::Constant);
    if (!has_master) put(tensors_of(buffer.role, state)[name], updates);
    for (int64_t age = 1; is_weight && age <= ages; ++age) put(state.older[age - 1][name], updates - age);
  }
}

std::vector<float> Session::watched() const {
  return watches() ? read_buffer(train_.program.watch) : std::vector<float>();
}

void Session::put_watched(const std::vector<float>& squares) {
  backend_.upload(graph_, train_.program, train_.program.watch, squares, address(0, train_.program.watch, {}));
}

bool Session::has_param(const std::string& name) const {
  return std::any_of(train_.program.buffers.begin(), train_.program.buffers.end(), [&](const graph::Buffer& buffer) {
    return buffer.param != graph::kNone && graph_.params[buffer.param].name == name;
  });
}

}  // namespace millrace::runtime
