// Parameters whose elements are shared out among the ranks of a group, exchanged bucket by bucket: sums of
// what all ranks have come to those who keep them, and what each keeps comes to all.
//
// A bucket (partition.h says how large) is a run of parameters, the last first, as backward completes them.
// Every rank starts the buckets of sums in that order, each as soon as it is full, so that its bytes travel
// while the next ones are made; what is gathered travels in the opposite order, in which a forward pass asks
// for it.
//
// Groups may be linked: what a rank keeps here is shared out further among the ranks of `next`, as those of a
// node share out with other nodes what they have added up. Sums go on from bucket to bucket, and what is
// gathered comes from there.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "dtopp/distributed/sharding/shards.h"

namespace dtopp {

class ShardExchange {
 public:
  // shards[i]: of parameter i, among the ranks of the group; among those of `next`, what this rank keeps of
  // it. `ranks` must serve nothing else; both must outlive this.
  ShardExchange(Collectives& ranks, std::vector<Shards> shards, const at::Device& device,
                ShardExchange* next = nullptr);

  // This rank's part of the sum, contiguous f32 in any shape; undefined: nothing to add. Once for each
  // parameter between two calls of take_sums(), or of forget(). Where it throws for want of memory
  // (c10::OutOfMemoryError), the part is taken all the same.
  void add(size_t parameter, at::Tensor part);
  // Waits for the rest: what this rank keeps of each parameter's sum over all ranks, those of `next` too,
  // along the aligned tree (tree_sum.h); f32 [kept]. Zero where no rank added anything.
  std::vector<at::Tensor> take_sums();

  // A step that could not be ended begins anew: forgets what was added since the last take_sums() but for
  // buckets that have set out. Of those what is added from now on is dropped: sums of the same step.
  void forget();

  // Begins to bring every rank what the others keep of `whole`: one contiguous tensor a parameter, of the
  // elements' number, whose kept part is right once before(parameter) has returned. Those of a type travel
  // together. Two buckets are on their way at a time; memory for more would be that of all parameters. What
  // must come from elsewhere beforehand is not waited for until it is asked for.
  void start_gather(std::vector<at::Tensor> whole, std::function<void(size_t)> before = {});
  // Whether anything comes from another rank.
  bool has_others() const { return ranks_.size() > 1 || (next_ && next_->has_others()); }
  // Returns when a parameter is there.
  void wait_gathered(size_t parameter);
  void finish_gather();

 private:
  struct Bucket {
    std::vector<size_t> parameters;
    size_t missing = 0;  // of the sums
    at::Tensor sent{};   // from when it is full until it sets out
    Pending exchange{};
    at::Tensor received{};  // [ranks * kept]; undefined once it is added up
    size_t passed_on = 0;   // of the parameters, to `next`
  };
  // Kept elements of parameters of one type, on their way to all.
  struct Gathering {
    size_t bucket = 0;
    std::vector<size_t> parameters{};
    at::Tensor received{};  // [ranks, most that one keeps]
    Pending exchange{};
  };
  const ElementRange& range(size_t parameter, int64_t rank) const {
    return shards_[parameter][static_cast<size_t>(rank)];
  }
  int64_t kept_elements(const std::vector<size_t>& parameters, int64_t rank) const;
  void start_full_buckets();
  void start(Bucket& bucket);
  at::Tensor packed_parts(const Bucket& bucket) const;
  void finish_buckets(size_t end);
  void finish(Bucket& bucket);
  void gather_down_to(size_t bucket);
  void start_next_gathering();
  Gathering prepare_gathering(size_t bucket, std::vector<size_t> parameters) const;
  void finish_oldest_gathering();
  // body(part of whole, part of what travels) for each of the parameters.
  template <typename Body>
  void for_each_part(const Gathering& gathering, int64_t rank, const Body& body) const;

  Collectives& ranks_;
  ShardExchange* next_;
  at::Device device_;
  std::vector<Shards> shards_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;
  std::vector<at::Tensor> parts_;      // what was added and has not been sent
  size_t started_ = 0, finished_ = 0;  // buckets of sums
  std::vector<at::Tensor> sums_;       // unless they go on

  std::vector<at::Tensor> whole_;
  std::function<void(size_t)> before_;  // none: as much as there is room for travels ahead
  size_t ungathered_ = 0;               // buckets whose gathering has not started
  std::deque<Gathering> gatherings_;
};

}  // namespace dtopp
