// How a job goes on when layers have been frozen: which plan it is given.
#pragma once

#include <memory>

#include "millrace/job/job.h"
#include "millrace/plan/freeze_rule.h"
#include "millrace/runtime/succession.h"

namespace millrace::cli {

// On process 0. With elastic.pipe the operators are measured now, once; every later plan follows from that.
runtime::Succession::Planner elastic_planner(const job::Job& job, const comm::Process& process);

// Together with all other processes: what elastic.cache keeps, in one store for those of a host. Its first process
// makes it.
std::shared_ptr<runtime::PrefixCaches> make_caches(std::unique_ptr<comm::Process>& process, const job::Job& job);

// Where the rule stands at the beginning of a run.
plan::FreezeState first_freezing(const job::Job& job);

}  // namespace millrace::cli
