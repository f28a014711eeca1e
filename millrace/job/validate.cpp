#include "millrace/job/validate.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "millrace/base/error.h"
#include "millrace/job/fields.h"
#include "millrace/job/text.h"

namespace millrace::job {
namespace {

void check_ranges(const Job& job, const std::string& where) {
  for (const Field& field : fields()) {
    if (const std::string fault = field.fault(job); !fault.empty()) fail_input("{}: {}", where, fault);
  }
}

void check_name(const Job& job, const std::string& where) {
  if (job.name.find('/') == std::string::npos) return;
  fail_input("{}: name is {}; it becomes part of a directory's name: write it without /, and --out for another place",
             where, in_quotes(job.name));
}

void check_length(const Job& job, const std::string& where) {
  if (job.data.kind == DataKind::Generated && job.data.train_samples < 1) {
    fail_input("{}: data.kind is generated and data.train_samples 0; write e.g. data.train_samples: 5000", where);
  }
  if (is_from_files(job.data.kind) && job.data.train.empty()) {
    fail_input("{}: data.kind is {} without data.train; write e.g. data.train: path/to/train", where,
               find_field("data.kind")->write(job));
  }
  if (job.steps > 0) return;
  if (job.epochs == 0) fail_input("{}: steps and epochs are both 0; write e.g. epochs: 1", where);
  if (job.data.kind == DataKind::Synthetic && job.data.train_samples == 0) {
    fail_input("{}: synthetic data has no length to count epochs by; write e.g. steps: 100, or data.train_samples",
               where);
  }
}

// Which kind of text a model reads follows from what it says of it; random tokens are for all.
void check_text(const Job& job, const std::string& kind, const std::string& where) {
  const Model& model = job.model;
  const Data& data = job.data;
  const bool span = model.head == Head::Span;
  if (span && !is_bert(model)) {
    fail_input("{}: model.head is span and model.name {}; only BERT has such a head: write model.name: bert_base",
               where, model.name);
  }
  if (!reads_tokens(model)) {
    if (!is_text(data.kind)) return;
    fail_input("{}: data.kind is {} and model.name {}, which does not read it; write {}", where, kind, model.name,
               data.kind == DataKind::TokenFile ? "model.name: gpt2"
               : data.kind == DataKind::Squad   ? "model.name: bert_base and model.head: span"
                                                : "model.name: bert_base");
  }
  if (data.kind == DataKind::Synthetic) return;
  if (is_gpt(model) && data.kind != DataKind::TokenFile) {
    fail_input("{}: model.name is {} and data.kind {}; it learns which token comes next: write data.kind: token_file",
               where, model.name, kind);
  }
  if (!is_gpt(model) && data.kind == DataKind::TokenFile) {
    fail_input("{}: data.kind is token_file and model.name {}, which does not read it; write model.name: gpt2", where,
               model.name);
  }
  if (span && data.kind != DataKind::Squad) {
    fail_input("{}: model.head is span and data.kind {}; it answers questions: write data.kind: squad", where, kind);
  }
  if (!span && data.kind == DataKind::Squad) {
    fail_input("{}: data.kind is squad and model.name {} without model.head: span; write {}model.head: span", where,
               model.name, is_bert(model) ? "" : "model.name: bert_base and ");
  }
  if (!is_text(data.kind)) {
    fail_input("{}: model.name is {} and data.kind {}; it reads text: write data.kind: tsv_text", where, model.name,
               kind);
  }
  // [CLS] and two [SEP] beside the question; what is left must be more than what windows share.
  const int64_t least = int64_t{data.max_question} + data.doc_stride + 4;
  if (data.kind == DataKind::Squad && model.tokens < least) {
    fail_input(
        "{}: model.tokens is {}, data.max_question {} and data.doc_stride {}; windows of a text would not advance: "
        "write model.tokens: {} or more, or a smaller data.doc_stride",
        where, model.tokens, data.max_question, data.doc_stride, least);
  }
}

void check_data(const Job& job, const std::string& where) {
  const Data& data = job.data;
  const std::string kind = find_field("data.kind")->write(job);
  check_text(job, kind, where);
  if (is_words(data.kind) && data.vocab.empty()) {
    fail_input("{}: data.kind is {} without data.vocab; write e.g. data.vocab: vocab.txt", where, kind);
  }
  if (!is_from_files(data.kind)) return;
  if (!is_text(data.kind) && job.model.channels != 1 && job.model.channels != 3) {
    fail_input("{}: model.channels is {} and data.kind {}; pictures have 3 channels, or 1", where, job.model.channels,
               kind);
  }
  for (const auto& [key, values] : {std::pair{"data.mean", &data.mean}, std::pair{"data.std", &data.std}}) {
    if (values->empty() || static_cast<int>(values->size()) == job.model.channels) continue;
    fail_input("{}: {} has {} numbers and model.channels is {}; write one for each channel", where, key, values->size(),
               job.model.channels);
  }
  for (const auto& [key, t] : {std::pair{"data.train_transform", &data.train_transform},
                               std::pair{"data.test_transform", &data.test_transform}}) {
    if (t->min_area > t->max_area || t->max_area <= 0) {
      fail_input("{}: {}.min_area is {} and max_area {}; write e.g. 0.08 and 1", where, key, t->min_area, t->max_area);
    }
    if (t->min_aspect > t->max_aspect) {
      fail_input("{}: {}.min_aspect is {} and max_aspect {}; write e.g. 0.75 and 1.3333", where, key, t->min_aspect,
                 t->max_aspect);
    }
  }
}

void check_microbatches(const Job& job, const std::string& where) {
  const int64_t batch = job.batch, parts = job.parallel.microbatches;
  if (parts > batch) {
    fail_input(
        "{0}: batch is {1} and parallel.microbatches {2}; a part needs a sample: write "
        "parallel.microbatches: {1} or less, or batch: {2} or more",
        where, batch, parts);
  }
  if (batch % parts == 0) return;
  int64_t fewer = parts, more = parts;
  while (batch % fewer != 0) --fewer;
  while (batch % more != 0) ++more;
  const int64_t smaller = batch / parts * parts;
  fail_input(
      "{}: batch is {} and parallel.microbatches {}; the parts must be equal: write batch: {} or {}, "
      "or parallel.microbatches: {} or {}",
      where, batch, parts, smaller, smaller + parts, fewer, more);
}

void check_precision(const Job& job, const std::string& where) {
  if (job.device == Device::Cuda || job.precision == Precision::Fp32) return;
  fail_input("{}: precision is {} and device {}, which computes in fp32; write device: cuda, or precision: fp32", where,
             find_field("precision")->write(job), find_field("device")->write(job));
}

void check_optimizer(const Job& job, const std::string& where) {
  if (job.optimizer.nesterov && job.optimizer.momentum == 0) {
    fail_input("{}: optimizer.nesterov is true and optimizer.momentum 0; write e.g. optimizer.momentum: 0.9", where);
  }
  if (job.optimizer.kind == Algorithm::Sgd) return;
  const std::string kind = find_field("optimizer.kind")->write(job);
  if (job.optimizer.nesterov) {
    fail_input("{}: optimizer.nesterov is true and optimizer.kind {}; only sgd looks ahead: remove it", where, kind);
  }
  if (job.optimizer.decoupled) {
    fail_input("{}: optimizer.decoupled is true and optimizer.kind {}, which always decays so; remove it", where, kind);
  }
}

void check_schedule(const Schedule& schedule, const std::string& where) {
  if (schedule.warmup_epochs > 0 && schedule.warmup_steps > 0) {
    fail_input("{}: schedule.warmup_epochs is {} and schedule.warmup_steps {}; set only one of the two", where,
               schedule.warmup_epochs, schedule.warmup_steps);
  }
  const auto& milestones = schedule.milestones;
  if (schedule.kind == Decay::Step && milestones.empty()) {
    fail_input("{}: schedule.kind is step without schedule.milestones; write e.g. schedule.milestones: [30, 60, 80]",
               where);
  }
  if (schedule.kind != Decay::Step && !milestones.empty()) {
    fail_input("{}: schedule.milestones are only for schedule.kind: step; remove them or write schedule.kind: step",
               where);
  }
  for (size_t i = 1; i < milestones.size(); ++i) {
    if (milestones[i] <= milestones[i - 1]) {
      fail_input("{}: schedule.milestones must increase; {} comes after {}", where, milestones[i], milestones[i - 1]);
    }
  }
}

void check_init_file(const std::string& path, const std::string& where) {
  if (path.empty()) return;
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) fail_input("{}: model.init: there is no file \"{}\"", where, path);
  if (std::filesystem::is_directory(status)) {
    fail_input("{}: model.init: \"{}\" is a directory; name a safetensors file", where, path);
  }
  if (!std::ifstream(path, std::ios::binary)) {
    fail_input("{}: model.init: \"{}\" cannot be opened: {}", where, path, std::strerror(errno));
  }
}

}  // namespace

void validate(const Job& job, const std::string& where) {
  check_ranges(job, where);
  check_name(job, where);
  check_length(job, where);
  check_data(job, where);
  check_microbatches(job, where);
  validate_parallel(job, where);
  validate_elastic(job, where);
  check_precision(job, where);
  check_optimizer(job, where);
  check_schedule(job.schedule, where);
  check_init_file(job.model.init, where);
}

}  // namespace millrace::job
