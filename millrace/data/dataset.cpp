#include "millrace/data/dataset.h"

#include "millrace/base/error.h"
#include "millrace/data/generated.h"
#include "millrace/data/image_dataset.h"
#include "millrace/data/squad_dataset.h"
#include "millrace/data/synthetic.h"
#include "millrace/data/synthetic_tokens.h"
#include "millrace/data/text_dataset.h"
#include "millrace/data/token_dataset.h"

namespace millrace::data {

bool changes_with_epoch(const job::Job& job) {
  if (!job::is_from_files(job.data.kind) || job::is_text(job.data.kind)) return false;
  const job::Transform transform = resolved_transform(job, Split::Train);
  const bool draws = transform.kind == job::TransformKind::RandomResizedCrop ||
                     (transform.kind == job::TransformKind::PadCrop && transform.pad > 0);
  return draws || (transform.mirror > 0 && transform.mirror < 1);
}

std::unique_ptr<Dataset> make_dataset(const job::Job& job, Split split) {
  const ImageFormat format{job.model.channels, job.model.image_size, job.model.classes};
  const int64_t samples = split == Split::Train ? job.data.train_samples : job.data.test_samples;
  if (samples < 0) {
    fail_input("data.{}_samples: {} samples; write 0 or more", split == Split::Train ? "train" : "test", samples);
  }
  switch (job.data.kind) {
    case job::DataKind::Synthetic: {
      const bool one_batch = split == Split::Train && samples == 0;
      if (job::reads_tokens(job.model)) {
        return std::make_unique<SyntheticTokens>(token_format(job.model), one_batch ? job.batch : samples, one_batch,
                                                 job.seed, split);
      }
      return std::make_unique<Synthetic>(format, one_batch ? job.batch : samples, one_batch, job.seed, split);
    }
    case job::DataKind::Generated:
      if (split == Split::Train && samples == 0) {
        fail_input("data.train_samples: generated data needs at least 1 training sample, for example 5000");
      }
      return std::make_unique<Generated>(format, samples, job.data.noise, job.seed, split);
    case job::DataKind::OfRecord:
    case job::DataKind::ImageFolder:
    case job::DataKind::Cifar10:
    case job::DataKind::Cifar100: return open_image_dataset(job, split);
    case job::DataKind::TsvText: return open_text_dataset(job, split);
    case job::DataKind::Squad: return open_squad_dataset(job, split);
    case job::DataKind::TokenFile: return open_token_dataset(job, split);
  }
  fail_input("data.kind: unknown kind of data");
}

}  // namespace millrace::data
