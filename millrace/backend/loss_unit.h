// The loss of a row is counted in units of 2^-24. Sums of whole units are exact up to 2^29, so that what a run reports
// does not depend on which worker added which rows first.
#pragma once

namespace millrace::backend {

constexpr double kLossUnits = 0x1p24;  // in 1

}  // namespace millrace::backend
