// Tensors whose elements are shared out among ranks (partition.h), exchanged bucket by bucket: sums of what
// all ranks have come to those who keep them, and what each keeps comes to all.
//
// A bucket is a run of parameters, the last first, as backward completes them. Every rank starts the buckets
// in that order, each as soon as it is full, so that its bytes travel while the next ones are made.
#pragma once

#include <vector>

#include "dtopp/distributed/collectives.h"
#include "dtopp/distributed/partition.h"

namespace dtopp {

class ShardExchange {
 public:
  // Parameter i has partitions[i].elements() elements. `ranks` must outlive this.
  ShardExchange(Collectives& ranks, const std::vector<int64_t>& elements, const at::Device& device,
                int64_t bucket_elements = int64_t{40} << 20);

  const Partition& partition(size_t parameter) const { return partitions_[parameter]; }
  // What this rank keeps of a parameter.
  ElementRange kept(size_t parameter) const { return partitions_[parameter].range(ranks_.rank()); }
  Collectives& ranks() const { return ranks_; }

  // This rank's part of the sum, contiguous f32 in any shape; undefined: nothing to add. Once for each
  // parameter between two calls of take_sums().
  void add(size_t parameter, at::Tensor part);
  // Waits for the rest: what this rank keeps of each parameter's sum over all ranks, along the aligned tree;
  // f32 [kept(i).size()]. Zero where no rank added anything.
  std::vector<at::Tensor> take_sums();

  // Elements [piece.begin, piece.end) of a parameter of which this rank has `kept`: on rank `root`, or with
  // kEveryRank on all; undefined elsewhere.
  static constexpr int64_t kEveryRank = -1;
  at::Tensor collect(size_t parameter, const at::Tensor& kept, const ElementRange& piece, int64_t root) const;

  // Brings every rank what the others keep of `whole`: one contiguous tensor a parameter, of the elements'
  // number, whose kept part is right already. Those of a type travel together.
  void gather(const std::vector<at::Tensor>& whole) const;

 private:
  struct Bucket {
    std::vector<size_t> parameters;
    size_t missing = 0;  // of the sums
    Pending exchange{};
    at::Tensor received{};  // [ranks * kept]
  };
  // Parameters whose kept elements are on their way to all.
  struct Gathering {
    std::vector<size_t> parameters;
    at::Tensor received{};  // [ranks, most that one keeps]
    Pending exchange{};
  };
  int64_t kept_elements(const std::vector<size_t>& parameters, int64_t rank) const;
  void start_full_buckets();
  void start(Bucket& bucket);
  void finish(Bucket& bucket, std::vector<at::Tensor>& sums);
  Gathering start_gathering(std::vector<size_t> parameters, const std::vector<at::Tensor>& whole) const;
  void finish(Gathering gathering, const std::vector<at::Tensor>& whole) const;
  // body(part of whole, part of what travels) for each of the parameters.
  template <typename Body>
  void for_each_part(const Gathering& gathering, int64_t rank, const std::vector<at::Tensor>& whole,
                     const Body& body) const;

  Collectives& ranks_;
  at::Device device_;
  std::vector<Partition> partitions_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;
  std::vector<at::Tensor> parts_;  // what was added and has not been sent
  size_t started_ = 0;             // buckets
};

}  // namespace dtopp
