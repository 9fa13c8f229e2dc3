#include "dtopp/distributed/tree_sum.h"

#include <algorithm>

namespace dtopp {
namespace {

// left may become the sum's memory where `overwrite`.
at::Tensor sum_of(at::Tensor left, const at::Tensor& right, bool overwrite) {
  if (!right.defined()) return left;
  if (!left.defined()) return right;
  return overwrite ? left.add_(right) : left + right;
}

struct ReduceScatterOperation final : Pending::Operation {
  ReduceScatterOperation(Pending exchange, at::Tensor received, at::Tensor part_out, int64_t size)
      : exchange(std::move(exchange)),
        received(std::move(received)),
        part_out(std::move(part_out)),
        size(size) {}

  void wait() override {
    exchange.wait();
    std::vector<at::Tensor> parts = received.view({size, -1}).unbind(0);
    // As in tree_sum, but in the parts' own memory and, at last, in part_out.
    size_t stride = 1;
    for (; 2 * stride < parts.size(); stride *= 2)
      for (size_t i = 0; i + stride < parts.size(); i += 2 * stride) parts[i].add_(parts[i + stride]);
    at::add_out(part_out, parts[0], parts[stride]);
  }
  bool done() override { return exchange.done(); }

  Pending exchange;
  at::Tensor received, part_out;
  int64_t size;
};

}  // namespace

LeafBlock leaf_block(int64_t leaves, int64_t rank, int64_t size) {
  int64_t block = 1;
  while (block * size < leaves) block *= 2;
  return {std::min(rank * block, leaves), std::min((rank + 1) * block, leaves)};
}

at::Tensor tree_sum(std::vector<at::Tensor> leaves) {
  for (size_t stride = 1; stride < leaves.size(); stride *= 2)
    for (size_t i = 0; i + stride < leaves.size(); i += 2 * stride)
      leaves[i] = sum_of(leaves[i], leaves[i + stride], false);
  return leaves.empty() ? at::Tensor() : leaves[0];
}

void TreeAccumulator::add(at::Tensor leaf) {
  int level = 0;
  for (; !nodes_.empty() && nodes_.back().level == level; ++level) {
    leaf = sum_of(nodes_.back().sum, leaf, true);
    nodes_.pop_back();
  }
  nodes_.push_back({std::move(leaf), level});
}

at::Tensor TreeAccumulator::finish() {
  at::Tensor sum;
  for (; !nodes_.empty(); nodes_.pop_back()) sum = sum_of(nodes_.back().sum, sum, true);
  return sum;
}

Pending reduce_scatter(Collectives& collectives, at::Tensor part_out, at::Tensor flat, const char* what) {
  TORCH_CHECK(
      flat.dim() == 1 && part_out.is_contiguous() && flat.numel() == collectives.size() * part_out.numel(),
      what, ": ", flat.sizes(), " is not ", collectives.size(), " parts of ", part_out.sizes());
  part_out = part_out.view(-1);
  if (collectives.size() == 1) return collectives.all_to_all(std::move(part_out), std::move(flat), {}, what);
  at::Tensor received = at::empty_like(flat);
  Pending exchange = collectives.all_to_all(received, std::move(flat), {}, what);
  return Pending(std::make_unique<ReduceScatterOperation>(std::move(exchange), std::move(received),
                                                          std::move(part_out), collectives.size()));
}

}  // namespace dtopp
