#include "dtopp/distributed/shards.h"

#include <algorithm>

namespace dtopp {

at::Tensor collect(Collectives& ranks, const Shards& shards, const at::Tensor& kept,
                   const ElementRange& piece, int64_t root) {
  const auto part = [&](int64_t rank) {
    const ElementRange& range = shards[static_cast<size_t>(rank)];
    const int64_t begin = std::clamp(range.begin, piece.begin, piece.end);
    return ElementRange{begin, std::clamp(range.end, begin, piece.end)};
  };
  const ElementRange mine = part(ranks.rank());
  const int64_t first = mine.size() == 0 ? 0 : mine.begin - shards[static_cast<size_t>(ranks.rank())].begin;
  at::Tensor sent = kept.narrow(0, first, mine.size());
  if (ranks.size() == 1) return sent;
  Splits splits;
  std::vector<at::Tensor> copies = {sent.narrow(0, 0, 0)};
  const bool receives = root == kEveryRank || root == ranks.rank();
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    const bool takes = root == kEveryRank || root == rank;
    if (takes) copies.push_back(sent);
    splits.in.push_back(takes ? mine.size() : 0);
    splits.out.push_back(receives ? part(rank).size() : 0);
  }
  const at::Tensor received = at::empty({receives ? piece.size() : 0}, sent.options());
  ranks.all_to_all(received, at::cat(copies), splits, "collect").wait();
  if (!receives) return {};
  at::Tensor ordered = at::empty_like(received);
  int64_t at = 0;
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    const ElementRange range = part(rank);
    ordered.narrow(0, range.begin - piece.begin, range.size()).copy_(received.narrow(0, at, range.size()));
    at += range.size();
  }
  return ordered;
}

}  // namespace dtopp
