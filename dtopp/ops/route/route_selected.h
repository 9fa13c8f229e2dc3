// Computes gates for a given selection of experts, for example to replay recorded routing.
#pragma once

#include "dtopp/ops/route/route.h"

namespace dtopp::ops {

// Like route (route.h), with S given by routing_map_TE, any number of experts per token. The logits do not
// change S. A token's gates are NaN if its P over S add up to 0.
//
// Shapes:        routing_map_TE bool [T, E]; logits_TE and scale as in route
// Throws:        c10::Error "route_selected: …" if the selection does not fit, else "route: …"
RouteOutput route_selected(const at::Tensor& logits_TE, const at::Tensor& scale,
                           const at::Tensor& routing_map_TE, std::string_view normalization,
                           bool renormalize);

// Sets the counts of `out` to those of a selection, bool [T, E].
void set_counts(const at::Tensor& routing_map_TE, RouteOutput& out);

}  // namespace dtopp::ops
