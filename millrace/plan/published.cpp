#include "millrace/plan/published.h"

#include "millrace/job/placement.h"

namespace millrace::plan {

using job::Mode;

const std::vector<Published>& published_experiments() {
  // PipeTransformer's elastic run stands here with the static pipeline it starts from: one on each of two machines.
  constexpr const char* kEightStages = "0:0,1:0.0:1,1:1.0:2,1:2.0:3,1:3.0:4,1:4.0:5,1:5.0:6,1:6.0:7,1:7";
  static const std::vector<Published> all{
      {"pd_alexnet_dp", "PipeDream", "alexnet", Mode::Dp, 1, 8, "0:0-7", "", true, 256, false, "TITAN V", 4679, 6925},
      {"pd_alexnet_pp", "PipeDream", "alexnet", Mode::PipeDream, 1, 8, "0:0-6.0:7", "", true, 256, false, "TITAN V",
       5047, 9776},
      {"pd_vgg16_dp", "PipeDream", "vgg16", Mode::Dp, 1, 8, "0:0-7", "", true, 64, false, "TITAN V", 11845, 527},
      {"pd_vgg16_pp", "PipeDream", "vgg16", Mode::PipeDream, 1, 8, "0:0-6.0:7", "", true, 64, false, "TITAN V", 0, 0},
      {"of_rn50_dp", "OneFlow", "resnet50", Mode::Dp, 2, 8, "0:0-7,1:0-7", "", true, 64, false, "TITAN V", 7877, 4554},
      {"of_rn50_ssp1", "OneFlow", "resnet50", Mode::Ssp, 2, 8, "0:0-7,1:0-7", "", true, 64, false, "TITAN V", 7877,
       4467},
      {"of_rn50_ssp_1_30", "OneFlow", "resnet50", Mode::Ssp, 2, 8, "0:0-7,1:0-7.0:0-7,1:0-7", "1:30", true, 64, false,
       "TITAN V", 8325, 0},
      {"of_rn50_ssp_1_10", "OneFlow", "resnet50", Mode::Ssp, 2, 8, "0:0-7,1:0-7.0:0-7,1:0-7", "1:10", true, 64, false,
       "TITAN V", 0, 0},
      {"of_rn50_ssp_1_27_false", "OneFlow", "resnet50", Mode::Ssp, 2, 8, "0:0-7,1:0-7.0:0-7,1:0-7", "1:27", false, 64,
       false, "TITAN V", 7593, 4569},
      {"of_rn50_ssp_1_27_true", "OneFlow", "resnet50", Mode::Ssp, 2, 8, "0:0-7,1:0-7.0:0-7,1:0-7", "1:27", true, 64,
       false, "TITAN V", 8039, 4577},
      {"of_vgg_dp_8r_b32", "OneFlow", "vgg16", Mode::Dp, 1, 8, "0:0-7", "", true, 32, false, "TITAN V", 6485, 779},
      {"of_vgg_dp_1r_b32", "OneFlow", "vgg16", Mode::Dp, 1, 1, "0:0", "", true, 32, false, "TITAN V", 5831, 208.458},
      {"of_vgg_ssp_8r_b32", "OneFlow", "vgg16", Mode::Ssp, 1, 8, "0:0-6.0:7", "11:7", true, 32, false, "TITAN V", 0, 0},
      {"of_vgg_dp_8r_b28", "OneFlow", "vgg16", Mode::Dp, 1, 8, "0:0-7", "", true, 28, false, "TITAN V", 6139, 0},
      {"of_vgg_ssp_8r_b28", "OneFlow", "vgg16", Mode::Ssp, 1, 8, "0:0-6.0:7", "11:7", true, 28, false, "TITAN V", 4631,
       0},
      {"of_alexnet_dp_8r_b256", "OneFlow", "alexnet", Mode::Dp, 1, 8, "0:0-7", "", true, 256, false, "TITAN V", 2625,
       16976},
      {"of_alexnet_dp_1r_b256", "OneFlow", "alexnet", Mode::Dp, 1, 1, "0:0", "", true, 256, false, "TITAN V", 2361,
       4906},
      {"of_alexnet_ssp_8r_b256_10", "OneFlow", "alexnet", Mode::Ssp, 1, 8, "0:0-6.0:7", "10:1", true, 256, false,
       "TITAN V", 4475, 17375},
      {"of_alexnet_ssp_8r_b256_10_false", "OneFlow", "alexnet", Mode::Ssp, 1, 8, "0:0-6.0:7", "10:1", false, 256, false,
       "TITAN V", 3015, 14919},
      {"of_alexnet_ssp_8r_b256_3", "OneFlow", "alexnet", Mode::Ssp, 1, 8, "0:0-6.0:7", "3:1", true, 256, false,
       "TITAN V", 4155, 13817},
      {"of_alexnet_ssp_8r_b256_3_false", "OneFlow", "alexnet", Mode::Ssp, 1, 8, "0:0-6.0:7", "3:1", false, 256, false,
       "TITAN V", 2931, 13947},
      {"of_rn50_fp16_1", "OneFlow", "resnet50", Mode::Dp, 1, 1, "0:0", "", true, 256, true, "V100-SXM2-16GB", 0,
       1443.55},
      {"of_rn50_fp16_8", "OneFlow", "resnet50", Mode::Dp, 1, 8, "0:0-7", "", true, 256, true, "V100-SXM2-16GB", 0,
       10274.30},
      {"of_rn50_fp16_16", "OneFlow", "resnet50", Mode::Dp, 2, 8, "0:0-7,1:0-7", "", true, 256, true, "V100-SXM2-16GB",
       0, 17440.76},
      {"of_rn50_fp16_32", "OneFlow", "resnet50", Mode::Dp, 4, 8, "0:0-7,1:0-7,2:0-7,3:0-7", "", true, 256, true,
       "V100-SXM2-16GB", 0, 31958.78},
      {"pt_vit_ddp_3gpu", "PipeTransformer", "vit_b_16", Mode::Dp, 2, 3, "0:0-2,1:0-2", "", true, 64, false,
       "16 GB GPU", 14336, 260},
      {"pt_vit_pipe_3gpu", "PipeTransformer", "vit_b_16", Mode::GPipe, 2, 3, "0:0,1:0.0:1,1:1.0:2,1:2", "", true, 240,
       false, "16 GB GPU", 15360, 294, 4},
      {"pt_vit_ddp_4gpu", "PipeTransformer", "vit_b_16", Mode::Dp, 2, 4, "0:0-3,1:0-3", "", true, 60, false,
       "16 GB GPU", 16384, 416},
      {"pt_vit_pipe_4gpu", "PipeTransformer", "vit_b_16", Mode::GPipe, 2, 4, "0:0,1:0.0:1,1:1.0:2,1:2.0:3,1:3", "",
       true, 320, false, "16 GB GPU", 15872, 326, 8},
      {"pt_vit_all", "PipeTransformer", "vit_b_16", Mode::GPipe, 2, 8, kEightStages, "", true, 320, false, "16 GB GPU",
       0, 0, 8},
      {"pt_vit_nofreeze", "PipeTransformer", "vit_b_16", Mode::GPipe, 2, 8, kEightStages, "", true, 320, false,
       "16 GB GPU", 0, 0, 8},
  };
  return all;
}

const std::vector<PublishedGain>& published_elastic_gains() {
  static const std::vector<PublishedGain> all{{"1/2", 1. / 2, 3.86},
                                              {"2/5", 2. / 5, 3.29},
                                              {"1/3", 1. / 3, 2.83},
                                              {"1/4", 1. / 4, 2.44},
                                              {"1/5", 1. / 5, 2.04}};
  return all;
}

job::Job job_of(const Published& experiment) {
  job::Job job;
  job.name = experiment.id;
  job.model.name = experiment.model;
  job.model.classes = experiment.system == "PipeTransformer" ? 100 : 1000;
  job.model.image_size = 224;
  job.data.train_samples = 0;
  job.data.test_samples = 0;
  job.steps = 1;
  job.optimizer.momentum = 0.9;
  job.parallel.mode = experiment.mode;
  job.parallel.placement = experiment.placement;
  job.parallel.stage_weights = experiment.stage_weights;
  job.parallel.static_scheduling = experiment.static_scheduling;
  job.parallel.multi_buffer = experiment.static_scheduling;
  job.parallel.microbatches = experiment.microbatches;
  job.batch = experiment.batch_per_gpu;
  if (experiment.mode == Mode::PipeDream) {
    job.parallel.replicas = job::Replicas::RoundRobin;
    job.parallel.balance = job::Balance::Flops;
  } else if (!experiment.placement.empty()) {
    job.batch *= static_cast<int64_t>(job::parse_placement(experiment.placement)[0].size());
  }
  if (experiment.mode == Mode::GPipe) job.parallel.balance = job::Balance::Flops;
  return job;
}

}  // namespace millrace::plan
