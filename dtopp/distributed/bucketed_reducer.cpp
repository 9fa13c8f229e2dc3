#include "dtopp/distributed/bucketed_reducer.h"

#include <utility>

#include "dtopp/distributed/tree_sum.h"

namespace dtopp::distributed {
namespace {

// The requested elements that `rank` stores.
ElementRange part_of(const ShardRequest& request, int64_t rank) {
  if (!request.tensor) return {};
  const ElementRange range = request.tensor->layout->local_shard(rank);
  const int64_t begin = std::clamp(range.begin, request.range.begin, request.range.end);
  return {begin, std::clamp(range.end, begin, request.range.end)};
}

Tensor local_part(const ShardRequest& request, int64_t rank) {
  const ElementRange part = part_of(request, rank);
  const int64_t first = part.size() == 0 ? 0 : part.begin - request.tensor->layout->local_shard(rank).begin;
  return request.tensor->local_shard.narrow(0, first, part.size());
}

Tensor elements(const Tensor& whole, const ElementRange& range) {
  return whole.view(-1).narrow(0, range.begin, range.size());
}

// The elements of some parameters that a rank stores.
int64_t local_elements(const std::vector<Shards>& shards, const std::vector<size_t>& parameters,
                       size_t rank) {
  int64_t sum = 0;
  for (const size_t i : parameters) sum += shards[i][rank].size();
  return sum;
}

}  // namespace

Tensor gather_shards(Collectives& ranks, const std::vector<ShardRequest>& by_rank) {
  const ShardRequest& mine = by_rank.at(ranks.rank());
  if (ranks.size() == 1) return mine.tensor ? local_part(mine, 0) : Tensor();
  Splits splits;
  at::TensorOptions options;
  std::vector<Tensor> parts;
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    const ShardRequest& request = by_rank[rank];
    splits.in.push_back(part_of(request, ranks.rank()).size());
    splits.out.push_back(part_of(mine, rank).size());
    if (!request.tensor) continue;
    options = request.tensor->local_shard.options();
    if (splits.in.back() > 0) parts.push_back(local_part(request, ranks.rank()));
  }
  const Tensor sent = parts.empty()       ? at::empty({0}, options)
                      : parts.size() == 1 ? parts.front()
                                          : at::cat(parts);
  parts.clear();
  const Tensor received = at::empty({mine.range.size()}, options);
  ranks.all_to_all(received, sent, splits, "collect").wait();
  if (!mine.tensor) return {};
  Tensor ordered = at::empty_like(received);
  int64_t at = 0;
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    const ElementRange part = part_of(mine, rank);
    ordered.narrow(0, part.begin - mine.range.begin, part.size()).copy_(received.narrow(0, at, part.size()));
    at += part.size();
  }
  return ordered;
}

std::vector<std::vector<size_t>> divide_into_buckets(const std::vector<Shards>& shards) {
  std::vector<int64_t> elements(shards.size());
  for (size_t i = 0; i < shards.size(); ++i)
    for (const ElementRange& local_shard : shards[i]) elements[i] += local_shard.size();
  const int64_t target = bucket_elements(c10::sum_integers(elements));
  std::vector<std::vector<size_t>> buckets;
  int64_t room = 0;
  for (size_t i = shards.size(); i-- > 0;) {
    if (buckets.empty() || room < elements[i]) {
      buckets.emplace_back();
      room = target;
    }
    room -= elements[i];
    buckets.back().push_back(i);
  }
  return buckets;
}

int64_t gathered_elements(const std::vector<Shards>& shards, const std::vector<size_t>& parameters) {
  int64_t most = 0;
  for (size_t rank = 0; rank < shards[parameters.at(0)].size(); ++rank)
    most = std::max(most, local_elements(shards, parameters, rank));
  return most;
}

BucketedReducer::BucketedReducer(Collectives& ranks, std::vector<Shards> shards, const at::Device& device,
                                 BucketedReducer* next)
    : ranks_(ranks),
      next_(next),
      device_(device),
      shards_(std::move(shards)),
      bucket_of_(shards_.size()),
      parts_(shards_.size()),
      sums_(shards_.size()) {
  for (std::vector<size_t>& parameters : divide_into_buckets(shards_)) {
    for (const size_t i : parameters) bucket_of_[i] = buckets_.size();
    const size_t missing = parameters.size();
    buckets_.push_back({std::move(parameters), missing});
  }
}

void BucketedReducer::add(size_t parameter, Tensor part) {
  parts_[parameter] = std::move(part);
  buckets_[bucket_of_[parameter]].missing -= 1;
  start_full_buckets();
}

void BucketedReducer::start_full_buckets() {
  while (started_ < buckets_.size() && buckets_[started_].missing == 0) {
    if (ranks_.size() > 1) start(buckets_[started_]);
    started_ += 1;
    // The previous bucket has probably arrived while this one filled.
    if (next_) finish_buckets(ranks_.size() == 1 ? started_ : started_ - 1);
  }
}

void BucketedReducer::start(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  const auto options = at::device(device_).dtype(at::kFloat);
  std::vector<Tensor> pieces;
  for (int64_t rank = 0; rank < ranks_.size(); ++rank) {
    for (const size_t i : bucket.parameters)
      pieces.push_back(parts_[i].defined() ? elements(parts_[i], range(i, rank))
                                           : at::full({range(i, rank).size()}, kNothing, options));
  }
  Tensor sent = at::cat(pieces);
  pieces.clear();
  for (const size_t i : bucket.parameters) parts_[i].reset();
  Splits splits;
  const int64_t own = local_elements(shards_, bucket.parameters, static_cast<size_t>(ranks_.rank()));
  for (int64_t rank = 0; rank < ranks_.size(); ++rank) {
    splits.in.push_back(local_elements(shards_, bucket.parameters, static_cast<size_t>(rank)));
    splits.out.push_back(own);
  }
  bucket.received = at::empty({ranks_.size() * splits.out[0]}, options);
  bucket.exchange = ranks_.all_to_all(bucket.received, std::move(sent), std::move(splits), "reduce_scatter");
}

std::vector<Tensor> BucketedReducer::finish_reduce_scatter() {
  TORCH_CHECK(started_ == buckets_.size(), "finish_reduce_scatter: some parameters were not added");
  finish_buckets(buckets_.size());
  std::vector<Tensor> sums =
      next_ ? next_->finish_reduce_scatter() : std::exchange(sums_, std::vector<Tensor>(shards_.size()));
  for (Bucket& bucket : buckets_) bucket.missing = bucket.parameters.size();
  started_ = finished_ = 0;
  return sums;
}

void BucketedReducer::finish_buckets(size_t end) {
  const at::NoGradGuard no_grad;
  for (; finished_ < end; ++finished_) {
    Bucket& bucket = buckets_[finished_];
    finish(bucket);
    for (const size_t i : bucket.parameters) {
      if (next_)
        next_->add(i, std::exchange(sums_[i], Tensor()));
      else if (!sums_[i].defined())
        sums_[i] = at::zeros({range(i, ranks_.rank()).size()}, at::device(device_).dtype(at::kFloat));
    }
  }
}

void BucketedReducer::finish(Bucket& bucket) {
  if (ranks_.size() == 1) {
    for (const size_t i : bucket.parameters)
      if (parts_[i].defined()) sums_[i] = std::exchange(parts_[i], Tensor()).view(-1);
  } else {
    bucket.exchange.wait();
    const Tensor sum = tree_sum(bucket.received.view({ranks_.size(), -1}).unbind(0));
    bucket.received.reset();
    int64_t at = 0;
    for (const size_t i : bucket.parameters) {
      const int64_t size = range(i, ranks_.rank()).size();
      sums_[i] = sum.narrow(0, std::exchange(at, at + size), size);
    }
  }
}

void BucketedReducer::start_all_gather(std::vector<Tensor> whole, Source source) {
  finish_all_gather();
  whole_ = std::move(whole);
  source_ = std::move(source);
  if (next_ && next_->has_others()) {
    std::vector<Tensor> local_shards;
    for (size_t i = 0; i < whole_.size(); ++i)
      local_shards.push_back(elements(whole_[i], range(i, ranks_.rank())));
    next_->start_all_gather(std::move(local_shards), std::exchange(source_, Source{next_, {}}));
  }
  ungathered_ = buckets_.size();
  for (int ahead = 0; ahead < 2 && !source_.reducer; ++ahead) start_next_gathering();
}

void BucketedReducer::gather_down_to(size_t bucket) {
  for (;;) {
    if (!gatherings_.empty() && gatherings_.front().bucket >= bucket)
      finish_oldest_gathering();
    else if (gatherings_.empty() && ungathered_ > bucket)
      start_next_gathering();
    else
      return;
  }
}

void BucketedReducer::start_next_gathering() {
  if (ungathered_ == 0) return;
  const at::NoGradGuard no_grad;
  const size_t bucket = ungathered_ - 1;
  if (source_.reducer)
    for (const size_t i : buckets_[bucket].parameters)
      source_.reducer->wait_all_gather(source_.parameters.empty() ? i : source_.parameters[i]);
  // Allocate for the whole bucket before any state changes.
  std::vector<Gathering> prepared;
  std::map<at::ScalarType, std::vector<size_t>> by_type;  // all ranks send in this order
  for (const size_t i : buckets_[bucket].parameters) by_type[whole_[i].scalar_type()].push_back(i);
  for (auto& [type, parameters] : by_type)
    if (ranks_.size() > 1) prepared.push_back(prepare_gathering(bucket, std::move(parameters)));
  ungathered_ = bucket;
  for (Gathering& gathering : prepared) {
    gathering.exchange =
        ranks_.all_gather(gathering.received.view(-1), gathering.received[ranks_.rank()], "gather");
    gatherings_.push_back(std::move(gathering));
  }
}

BucketedReducer::Gathering BucketedReducer::prepare_gathering(size_t bucket,
                                                              std::vector<size_t> parameters) const {
  Gathering gathering{bucket, std::move(parameters)};
  const int64_t most = gathered_elements(shards_, gathering.parameters);
  gathering.received = at::zeros({ranks_.size(), most}, whole_[gathering.parameters[0]].options());
  for_each_part(gathering, ranks_.rank(),
                [](const Tensor& local_shard, const Tensor& sent) { sent.copy_(local_shard); });
  return gathering;
}

// Finishes the gathers of one bucket, which has one per type.
void BucketedReducer::finish_oldest_gathering() {
  const at::NoGradGuard no_grad;
  const size_t bucket = gatherings_.front().bucket;
  for (; !gatherings_.empty() && gatherings_.front().bucket == bucket; gatherings_.pop_front()) {
    Gathering& gathering = gatherings_.front();
    gathering.exchange.wait();
    for (int64_t rank = 0; rank < ranks_.size(); ++rank) {
      if (rank == ranks_.rank()) continue;
      for_each_part(gathering, rank,
                    [](const Tensor& local_shard, const Tensor& received) { local_shard.copy_(received); });
    }
  }
  if (!source_.reducer) start_next_gathering();
}

template <typename Body>
void BucketedReducer::for_each_part(const Gathering& gathering, int64_t rank, const Body& body) const {
  int64_t at = 0;
  for (const size_t i : gathering.parameters) {
    const ElementRange& local_shard = range(i, rank);
    body(elements(whole_[i], local_shard), gathering.received[rank].narrow(0, at, local_shard.size()));
    at += local_shard.size();
  }
}

}  // namespace dtopp::distributed
