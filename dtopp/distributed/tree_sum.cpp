#include "dtopp/distributed/tree_sum.h"

#include <algorithm>

namespace dtopp::distributed {
namespace {

// Reuses the memory of `left` for the sum if `overwrite`.
Tensor sum_of(Tensor left, const Tensor& right, bool overwrite) {
  if (!right.defined()) return left;
  if (!left.defined()) return right;
  return overwrite ? left.add_(right) : left + right;
}

}  // namespace

MicroBatchRange local_micro_batches(int64_t leaves, int64_t rank, int64_t size, int64_t ep_size) {
  int64_t per_rank = ep_size;
  while (per_rank * size < leaves) per_rank *= 2;
  return {std::min(rank * per_rank, leaves), std::min((rank + 1) * per_rank, leaves)};
}

Tensor tree_sum(std::vector<Tensor> leaves) {
  for (size_t stride = 1; stride < leaves.size(); stride *= 2)
    for (size_t i = 0; i + stride < leaves.size(); i += 2 * stride)
      leaves[i] = sum_of(leaves[i], leaves[i + stride], false);
  return leaves.empty() ? Tensor() : leaves[0];
}

Tensor TreeAccumulator::waiting() const {
  return !nodes_.empty() && nodes_.back().level == 0 ? nodes_.back().sum : Tensor();
}

void TreeAccumulator::added() {
  Node pair = std::move(nodes_.back());
  nodes_.pop_back();
  pair.level += 1;
  join(std::move(pair));
}

void TreeAccumulator::join(Node node) {
  for (; !nodes_.empty() && nodes_.back().level == node.level; ++node.level) {
    node.sum = sum_of(nodes_.back().sum, node.sum, true);
    nodes_.pop_back();
  }
  nodes_.push_back(std::move(node));
}

Tensor TreeAccumulator::finish() {
  Tensor sum;
  for (; !nodes_.empty(); nodes_.pop_back()) sum = sum_of(nodes_.back().sum, sum, true);
  return sum;
}

}  // namespace dtopp::distributed
