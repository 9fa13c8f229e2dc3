// Reduce-scatters gradients and all-gathers parameters, bucket by bucket, over the ranks of one group.
//
// Every parameter is split into one local shard per rank. A bucket (bucket_elements) is a run of parameters
// in reverse order, because the backward pass completes the last parameter first:
//
// parameters  0  1  2 | 3  4 | 5  6         backward:  add(6), add(5), add(4), ...
// buckets      2      |  1   |  0           reduce-scatter order: 0, 1, 2    all-gather order: 2, 1, 0
//
// Every rank starts the reduce-scatters in this order, each as soon as its bucket is full. Its transfer
// overlaps with the computation of the next buckets. All-gathers run in the opposite order, in which the
// forward pass needs them.
//
// Two reducers can be linked: `next` splits this group's local shards further. For example, this group is the
// EDP ranks of a node, and `next` connects the nodes:
//
// add -> reduce-scatter in the node -> reduce-scatter across nodes -> finish_reduce_scatter
// whole <- all-gather in the node   <- all-gather across nodes     <- start_all_gather
//
// Throws:        RankLost or ResourceError as Collectives
// Collective:    every rank of the group; the order of buckets is the same on every rank
#pragma once

#include <deque>

#include "dtopp/distributed/collectives.h"
#include "dtopp/distributed/shard_layout.h"

namespace dtopp::distributed {

// One rank's part of a parameter or moment.
struct ShardedTensor {
  const ShardLayout* layout = nullptr;
  Tensor local_shard;  // the elements of layout->local_shard(rank), [elements]
};

// A request of one rank for elements [begin, end) of a tensor. Without a tensor the rank requests nothing.
struct ShardRequest {
  const ShardedTensor* tensor = nullptr;
  ElementRange range{};
};

// Sends each rank the elements that it requests: by_rank[r] is the request of rank r.
//
// All ranks pass the same requests, each rank with its own local shards. The tensors share one type and
// device. `ranks` are the ranks of the layouts. Peak memory is the elements sent (none if one rank gets them
// all) plus twice the elements received.
//
// Returns:       this rank's elements [elements], undefined without a request; a view if the group has one
//                rank
Tensor gather_shards(Collectives& ranks, const std::vector<ShardRequest>& by_rank);

// Returns the parameters of each bucket, in the order of the reduce-scatters. shards[i] are those of
// parameter i.
std::vector<std::vector<size_t>> divide_into_buckets(const std::vector<Shards>& shards);

// Returns the number of elements that each rank sends in an all-gather of some parameters: that of the rank
// with the most.
int64_t gathered_elements(const std::vector<Shards>& shards, const std::vector<size_t>& parameters);

class BucketedReducer {
 public:
  // shards[i] are the shards of parameter i over `ranks`. The shards of `next` split this rank's local
  // shards. This object must use `ranks` alone; `ranks` and `next` must outlive it.
  BucketedReducer(Collectives& ranks, std::vector<Shards> shards, const at::Device& device,
                  BucketedReducer* next = nullptr);

  // Adds this rank's contribution to the sum of one parameter: contiguous f32 with all elements, in any
  // shape, or undefined for none. Call it once per parameter, in any order, before each
  // finish_reduce_scatter(). Do not modify `part` afterwards.
  void add(size_t parameter, Tensor part);
  // Waits for all buckets.
  //
  // Returns:       per parameter, this rank's local shard of the sum over all ranks, including those of
  //                `next`: f32 [local shard], added along the aligned tree (tree_sum.h); zero if no rank
  //                added anything; in a group of one rank an alias of `part`
  // Throws:        c10::Error if a parameter was not added
  std::vector<Tensor> finish_reduce_scatter();

  // Starts the all-gather of `whole`: one contiguous tensor per parameter with all its elements. `whole`
  // holds this rank's local shard; the gather fills in the others. An earlier gather is finished first.
  // Parameters of one type share a message.
  //
  // Without a source, this rank's local shard must be valid now. Two buckets are in flight at a time; more
  // would need memory for all parameters.
  //
  // With a source, the local shard is a result of the source's all-gather, which is still running. A bucket
  // starts when wait_all_gather() needs it, after the source has gathered the bucket's parameters. With
  // `next`, `next` takes over the source and becomes the source of this one.
  struct Source {
    BucketedReducer* reducer = nullptr;  // null: none
    std::vector<size_t> parameters{};    // parameter i here is parameters[i] there; empty: i
  };
  void start_all_gather(std::vector<Tensor> whole, Source source);
  // Whether any other rank takes part.
  bool has_others() const { return ranks_.size() > 1 || (next_ && next_->has_others()); }
  // Blocks until all elements of a parameter are valid. Parameters may be waited for in any order.
  void wait_all_gather(size_t parameter) { gather_down_to(bucket_of_[parameter]); }
  // Waits for all parameters. A rank that needs none must call it too: other ranks wait for its buckets.
  void finish_all_gather() { gather_down_to(0); }

 private:
  struct Bucket {
    std::vector<size_t> parameters;
    size_t missing = 0;  // parameters without a contribution
    Pending exchange{};
    Tensor received{};  // [ranks * local shard]; undefined after its reduction
  };
  // The all-gather of a bucket's parameters of one type.
  struct Gathering {
    size_t bucket = 0;
    std::vector<size_t> parameters{};
    Tensor received{};  // [ranks, largest local shard]
    Pending exchange{};
  };
  const ElementRange& range(size_t parameter, int64_t rank) const { return shards_[parameter][rank]; }
  void start_full_buckets();
  void start(Bucket& bucket);
  void finish_buckets(size_t end);
  void finish(Bucket& bucket);
  void gather_down_to(size_t bucket);
  void start_next_gathering();
  Gathering prepare_gathering(size_t bucket, std::vector<size_t> parameters) const;
  void finish_oldest_gathering();
  // Calls body(shard in `whole`, shard in `received`) per parameter.
  template <typename Body>
  void for_each_part(const Gathering& gathering, int64_t rank, const Body& body) const;

  Collectives& ranks_;
  BucketedReducer* next_;
  at::Device device_;
  std::vector<Shards> shards_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;
  std::vector<Tensor> parts_;          // contributions that were not sent yet
  size_t started_ = 0, finished_ = 0;  // buckets of the reduce-scatter
  std::vector<Tensor> sums_;           // empty if `next` gets the sums

  std::vector<Tensor> whole_;
  Source source_;
  size_t ungathered_ = 0;  // buckets whose gather has not started
  std::deque<Gathering> gatherings_;
};

}  // namespace dtopp::distributed
