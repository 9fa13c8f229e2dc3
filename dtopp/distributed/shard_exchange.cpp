#include "dtopp/distributed/shard_exchange.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "dtopp/distributed/tree_sum.h"

namespace dtopp {
namespace {

at::Tensor elements(const at::Tensor& whole, const ElementRange& range) {
  return whole.view(-1).narrow(0, range.begin, range.size());
}

}  // namespace

ShardExchange::ShardExchange(Collectives& ranks, std::vector<Shards> shards, const at::Device& device,
                             int64_t bucket_elements)
    : ranks_(ranks),
      device_(device),
      shards_(std::move(shards)),
      bucket_of_(shards_.size()),
      parts_(shards_.size()) {
  int64_t room = 0;
  for (size_t i = shards_.size(); i-- > 0;) {
    int64_t elements = 0;
    for (const ElementRange& kept : shards_[i]) elements += kept.size();
    if (buckets_.empty() || room < elements) {
      buckets_.emplace_back();
      room = bucket_elements;
    }
    room -= elements;
    bucket_of_[i] = buckets_.size() - 1;
    buckets_.back().parameters.push_back(i);
    buckets_.back().missing += 1;
  }
}

int64_t ShardExchange::kept_elements(const std::vector<size_t>& parameters, int64_t rank) const {
  int64_t sum = 0;
  for (const size_t i : parameters) sum += range(i, rank).size();
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
      pieces.push_back(parts_[i].defined() ? elements(parts_[i], range(i, rank))
                                           : at::full({range(i, rank).size()}, kNothing, options));
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
  std::vector<at::Tensor> sums(shards_.size());
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
      const int64_t size = range(i, ranks_.rank()).size();
      sums[i] = sum.narrow(0, std::exchange(at, at + size), size);
    }
  }
  for (const size_t i : bucket.parameters) {
    if (!sums[i].defined())
      sums[i] = at::zeros({range(i, ranks_.rank()).size()}, at::device(device_).dtype(at::kFloat));
  }
}

void ShardExchange::start_gather(std::vector<at::Tensor> whole, std::function<void(size_t)> before) {
  finish_gather();
  if (ranks_.size() == 1) return;
  whole_ = std::move(whole);
  before_ = std::move(before);
  ungathered_ = buckets_.size();
  start_next_gathering();
  start_next_gathering();
}

void ShardExchange::wait_gathered(size_t parameter) {
  while (!gatherings_.empty() && gatherings_.front().bucket >= bucket_of_[parameter])
    finish_oldest_gathering();
}

void ShardExchange::finish_gather() {
  while (!gatherings_.empty()) finish_oldest_gathering();
}

void ShardExchange::start_next_gathering() {
  if (ungathered_ == 0) return;
  const at::NoGradGuard no_grad;
  const size_t bucket = --ungathered_;
  if (before_) {
    for (const size_t i : buckets_[bucket].parameters) before_(i);
  }
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    std::vector<size_t> of_type;
    std::ranges::copy_if(buckets_[bucket].parameters, std::back_inserter(of_type),
                         [&](size_t i) { return whole_[i].scalar_type() == type; });
    if (!of_type.empty()) start_gathering(bucket, std::move(of_type));
  }
}

void ShardExchange::start_gathering(size_t bucket, std::vector<size_t> parameters) {
  Gathering gathering{bucket, std::move(parameters)};
  int64_t most = 0;  // every rank sends as much
  for (int64_t rank = 0; rank < ranks_.size(); ++rank)
    most = std::max(most, kept_elements(gathering.parameters, rank));
  gathering.received = at::zeros({ranks_.size(), most}, whole_[gathering.parameters[0]].options());
  for_each_part(gathering, ranks_.rank(),
                [](const at::Tensor& kept, const at::Tensor& sent) { sent.copy_(kept); });
  gathering.exchange =
      ranks_.all_gather(gathering.received.view(-1), gathering.received[ranks_.rank()], "gather");
  gatherings_.push_back(std::move(gathering));
}

// All of a bucket's.
void ShardExchange::finish_oldest_gathering() {
  const at::NoGradGuard no_grad;
  const size_t bucket = gatherings_.front().bucket;
  for (; !gatherings_.empty() && gatherings_.front().bucket == bucket; gatherings_.pop_front()) {
    Gathering& gathering = gatherings_.front();
    gathering.exchange.wait();
    for (int64_t rank = 0; rank < ranks_.size(); ++rank) {
      if (rank == ranks_.rank()) continue;
      for_each_part(gathering, rank,
                    [](const at::Tensor& kept, const at::Tensor& received) { kept.copy_(received); });
    }
  }
  start_next_gathering();
}

template <typename Body>
void ShardExchange::for_each_part(const Gathering& gathering, int64_t rank, const Body& body) const {
  int64_t at = 0;
  for (const size_t i : gathering.parameters) {
    const ElementRange& kept = range(i, rank);
    body(elements(whole_[i], kept), gathering.received[rank].narrow(0, at, kept.size()));
    at += kept.size();
  }
}

}  // namespace dtopp
