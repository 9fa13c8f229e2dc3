// The gates of experts that were chosen before: routing replayed.
#pragma once

#include "dtopp/ops/route/route.h"

namespace dtopp {

// As route (ops/route/route.h), with S given: selection_TE bool [T, E], any number of experts a token. The
// logits give the gates alone. A token's gates are NaN where its P over S add up to 0.
//
// Throws c10::Error beginning "route_selected:" for a selection that does not fit, else "route:".
RouteOutput route_selected(const at::Tensor& logits_TE, const at::Tensor& scale,
                           const at::Tensor& selection_TE, std::string_view normalization, bool renormalize);

}  // namespace dtopp
