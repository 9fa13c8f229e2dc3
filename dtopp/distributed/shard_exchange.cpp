#include "dtopp/distributed/shard_exchange.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "dtopp/distributed/tree_sum.h"

namespace dtopp {
namespace {

at::Tensor elements(const at::Tensor& whole, const ElementRange& range) {
  return whole.view(-1).narrow(0, range.begin, range.size());
}

}  // namespace

ShardExchange::ShardExchange(Collectives& ranks, const std::vector<int64_t>& elements,
                             const at::Device& device, int64_t bucket_elements)
    : ranks_(ranks), device_(device), bucket_of_(elements.size()), parts_(elements.size()) {
  for (size_t i = 0; i < elements.size(); ++i)
    partitions_.emplace_back(elements[i], static_cast<int64_t>(i), ranks.size());
  int64_t room = 0;
  for (size_t i = elements.size(); i-- > 0;) {
    if (buckets_.empty() || room < elements[i]) {
      buckets_.emplace_back();
      room = bucket_elements;
    }
    room -= elements[i];
    bucket_of_[i] = buckets_.size() - 1;
    buckets_.back().parameters.push_back(i);
    buckets_.back().missing += 1;
  }
}

int64_t ShardExchange::kept_elements(const std::vector<size_t>& parameters, int64_t rank) const {
  int64_t sum = 0;
  for (const size_t i : parameters) sum += partitions_[i].range(rank).size();
  return sum;
}

void ShardExchange::add(size_t parameter, at::Tensor part) {
  parts_[parameter] = std::move(part);
  buckets_[bucket_of_[parameter]].missing -= 1;
  start_full_buckets();
}

void ShardExchange::start_full_buckets() {
  for (; started_ < buckets_.size() && buckets_[started_].missing == 0; ++started_) {
    if (ranks_.size() > 1) start(buckets_[started_]);
  }
}

void ShardExchange::start(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  const auto options = at::device(device_).dtype(at::kFloat);
  Splits splits;
  std::vector<at::Tensor> pieces;
  for (int64_t rank = 0; rank < ranks_.size(); ++rank) {
    splits.in.push_back(kept_elements(bucket.parameters, rank));
    splits.out.push_back(kept_elements(bucket.parameters, ranks_.rank()));
    for (const size_t i : bucket.parameters) {
      const ElementRange range = partitions_[i].range(rank);
      pieces.push_back(parts_[i].defined() ? elements(parts_[i], range)
                                           : at::full({range.size()}, kNothing, options));
    }
  }
  at::Tensor sent = at::cat(pieces);
  pieces.clear();
  for (const size_t i : bucket.parameters) parts_[i].reset();
  bucket.received = at::empty({ranks_.size() * splits.out[0]}, options);
  bucket.exchange = ranks_.all_to_all(bucket.received, std::move(sent), std::move(splits), "reduce_scatter");
}

std::vector<at::Tensor> ShardExchange::take_sums() {
  TORCH_CHECK(started_ == buckets_.size(), "take_sums: some parameters were not added");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums(partitions_.size());
  for (Bucket& bucket : buckets_) {
    finish(bucket, sums);
    bucket.missing = bucket.parameters.size();
  }
  started_ = 0;
  return sums;
}

void ShardExchange::finish(Bucket& bucket, std::vector<at::Tensor>& sums) {
  if (ranks_.size() == 1) {
    for (const size_t i : bucket.parameters) {
      if (parts_[i].defined()) sums[i] = std::exchange(parts_[i], at::Tensor()).view(-1);
    }
  } else {
    bucket.exchange.wait();
    const at::Tensor sum = tree_sum(bucket.received.view({ranks_.size(), -1}).unbind(0));
    bucket.received.reset();
    int64_t at = 0;
    for (const size_t i : bucket.parameters) {
      sums[i] = sum.narrow(0, at, kept(i).size());
      at += kept(i).size();
    }
  }
  for (const size_t i : bucket.parameters) {
    if (!sums[i].defined()) sums[i] = at::zeros({kept(i).size()}, at::device(device_).dtype(at::kFloat));
  }
}

at::Tensor ShardExchange::collect(size_t parameter, const at::Tensor& kept_elements,
                                  const ElementRange& piece, int64_t root) const {
  const auto part = [&](int64_t rank) {
    const ElementRange range = partitions_[parameter].range(rank);
    const int64_t begin = std::max(range.begin, piece.begin);
    return ElementRange{begin, std::max(begin, std::min(range.end, piece.end))};
  };
  const ElementRange mine = part(ranks_.rank());
  const at::Tensor sent = kept_elements.narrow(0, mine.begin - kept(parameter).begin, mine.size());
  if (ranks_.size() == 1) return sent;
  Splits splits;
  std::vector<at::Tensor> copies;
  const bool receives = root == kEveryRank || root == ranks_.rank();
  for (int64_t rank = 0; rank < ranks_.size(); ++rank) {
    const bool takes = root == kEveryRank || root == rank;
    if (takes) copies.push_back(sent);
    splits.in.push_back(takes ? mine.size() : 0);
    splits.out.push_back(receives ? part(rank).size() : 0);
  }
  const at::Tensor received = at::empty({receives ? piece.size() : 0}, sent.options());
  ranks_.all_to_all(received, at::cat(copies), splits, "collect").wait();
  if (!receives) return {};
  const at::Tensor ordered = at::empty_like(received);
  int64_t at = 0;
  for (int64_t rank = 0; rank < ranks_.size(); ++rank) {
    const ElementRange range = part(rank);
    ordered.narrow(0, range.begin - piece.begin, range.size()).copy_(received.narrow(0, at, range.size()));
    at += range.size();
  }
  return ordered;
}

void ShardExchange::gather(const std::vector<at::Tensor>& whole) const {
  if (ranks_.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::optional<Gathering> before;
  for (const Bucket& bucket : buckets_) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      std::vector<size_t> of_type;
      std::ranges::copy_if(bucket.parameters, std::back_inserter(of_type),
                           [&](size_t i) { return whole[i].scalar_type() == type; });
      if (of_type.empty()) continue;
      Gathering next = start_gathering(std::move(of_type), whole);
      if (before) finish(std::move(*before), whole);
      before.emplace(std::move(next));
    }
  }
  if (before) finish(std::move(*before), whole);
}

template <typename Body>
void ShardExchange::for_each_part(const Gathering& gathering, int64_t rank,
                                  const std::vector<at::Tensor>& whole, const Body& body) const {
  int64_t at = 0;
  for (const size_t i : gathering.parameters) {
    const ElementRange range = partitions_[i].range(rank);
    body(elements(whole[i], range), gathering.received[rank].narrow(0, at, range.size()));
    at += range.size();
  }
}

ShardExchange::Gathering ShardExchange::start_gathering(std::vector<size_t> parameters,
                                                        const std::vector<at::Tensor>& whole) const {
  Gathering gathering{std::move(parameters)};
  int64_t most = 0;  // every rank sends as much
  for (int64_t rank = 0; rank < ranks_.size(); ++rank)
    most = std::max(most, kept_elements(gathering.parameters, rank));
  gathering.received = at::zeros({ranks_.size(), most}, whole[gathering.parameters[0]].options());
  for_each_part(gathering, ranks_.rank(), whole,
                [](const at::Tensor& kept, const at::Tensor& sent) { sent.copy_(kept); });
  gathering.exchange =
      ranks_.all_gather(gathering.received.view(-1), gathering.received[ranks_.rank()], "gather");
  return gathering;
}

void ShardExchange::finish(Gathering gathering, const std::vector<at::Tensor>& whole) const {
  gathering.exchange.wait();
  for (int64_t rank = 0; rank < ranks_.size(); ++rank) {
    if (rank == ranks_.rank()) continue;
    for_each_part(gathering, rank, whole,
                  [](const at::Tensor& kept, const at::Tensor& received) { kept.copy_(received); });
  }
}

}  // namespace dtopp
