#include "dtopp/distributed/sharding/shards.h"

#include <algorithm>

namespace dtopp {

namespace {

// The requested elements that `rank` stores.
ElementRange part_of(const WantedPiece& wanted, int64_t rank) {
  if (!wanted.tensor) return {};
  const ElementRange range = wanted.tensor->partition->kept(rank);
  const int64_t begin = std::clamp(range.begin, wanted.piece.begin, wanted.piece.end);
  return {begin, std::clamp(range.end, begin, wanted.piece.end)};
}

at::Tensor own_part(const WantedPiece& wanted, int64_t rank) {
  const ElementRange part = part_of(wanted, rank);
  const int64_t first = part.size() == 0 ? 0 : part.begin - wanted.tensor->partition->kept(rank).begin;
  return wanted.tensor->kept.narrow(0, first, part.size());
}

}  // namespace

at::Tensor collect(Collectives& ranks, const std::vector<WantedPiece>& by_rank) {
  const WantedPiece& mine = by_rank.at(static_cast<size_t>(ranks.rank()));
  if (ranks.size() == 1) return mine.tensor ? own_part(mine, 0) : at::Tensor();
  Splits splits;
  at::TensorOptions options;
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    const WantedPiece& wanted = by_rank[static_cast<size_t>(rank)];
    splits.in.push_back(part_of(wanted, ranks.rank()).size());
    splits.out.push_back(part_of(mine, rank).size());
    if (!wanted.tensor) continue;
    options = wanted.tensor->kept.options();
    if (splits.in.back() > 0) parts.push_back(own_part(wanted, ranks.rank()));
  }
  const at::Tensor sent = parts.empty()       ? at::empty({0}, options)
                          : parts.size() == 1 ? parts.front()
                                              : at::cat(parts);
  parts.clear();
  const at::Tensor received = at::empty({mine.piece.size()}, options);
  ranks.all_to_all(received, sent, splits, "collect").wait();
  if (!mine.tensor) return {};
  at::Tensor ordered = at::empty_like(received);
  int64_t at = 0;
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    const ElementRange part = part_of(mine, rank);
    ordered.narrow(0, part.begin - mine.piece.begin, part.size()).copy_(received.narrow(0, at, part.size()));
    at += part.size();
  }
  return ordered;
}

}  // namespace dtopp
