// Holds the ranks of a run and the groups in which they communicate.
//
// Throws:        UsageError or ResourceError as make_gloo_collectives
// Collective:    make_process_groups, on every rank of the run
#pragma once

#include "dtopp/distributed/backend_collectives.h"
#include "dtopp/distributed/shard_layout.h"

namespace dtopp::distributed {
// Each group serves one purpose. Collectives of one purpose then never queue behind those of another.
// Example: the groups of rank 5 of 8, with EP size 2 on 2 nodes:
//
// world, saving    0 to 7
// edp_intra_node   5, 7
// edp_inter_node   1, 5
// ep, ep_dispatch  4, 5
struct ProcessGroups {
  std::shared_ptr<Collectives> world = std::make_shared<SingleRank>();
  // The EDP group, for gradients and parameters of this rank's EP shard: its ranks on this node, and this
  // rank's peers on the other nodes.
  std::shared_ptr<Collectives> edp_intra_node = std::make_shared<SingleRank>();
  std::shared_ptr<Collectives> edp_inter_node = std::make_shared<SingleRank>();
  // The EP group, twice: for gradients and parameters that all its ranks hold, and for the dispatch and
  // combine of tokens.
  std::shared_ptr<Collectives> ep = std::make_shared<SingleRank>();
  std::shared_ptr<Collectives> ep_dispatch = std::make_shared<SingleRank>();
  // All ranks, for a checkpoint that a thread writes during training. Only its collectives run on another
  // thread, and they are not counted: their order among those of training is not fixed. CPU tensors only.
  std::shared_ptr<Collectives> saving = std::make_shared<SingleRank>();
  std::shared_ptr<const CollectiveCounts> traffic{};  // of all other groups; null if nothing is counted
  at::Device device = at::kCPU;  // this rank's compute device, which the groups accept besides the CPU

  int64_t rank() const { return world->rank(); }
  int64_t size() const { return world->size(); }
  ParallelDims dims() const { return {size(), edp_inter_node->size(), ep->size()}; }
};

// Connects this rank to the others. `dims` come from with_nested_nodes(). Rank 0's nodes and EP size apply to
// all ranks. `counts`, if given, counts the collectives of all groups with several ranks. Cluster::connect
// sets `device` afterwards. Collective.
ProcessGroups make_process_groups(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                  const ParallelDims& dims, const GlooOptions& options,
                                  const std::shared_ptr<CollectiveCounts>& counts = nullptr);

// Combines the host and the device transport of one group. The device of a tensor selects the transport: NCCL
// for CUDA tensors, Gloo for CPU tensors and for barriers. The result must own both alone.
std::unique_ptr<Collectives> host_and_device(std::shared_ptr<Collectives> host,
                                             std::shared_ptr<Collectives> device);

// The NCCL collectives on CUDA devices of a run's groups. NCCL is in libdtopp_cuda.so.
//
// Throws:        ResourceError if the ranks cannot be connected
// Collective:    the constructor and finish(), on every rank of the run, in the same order
class DeviceGroups {
 public:
  // Replaces every group of `groups` with several ranks by one that also accepts tensors on `device`.
  // `device` is a CUDA device that no other rank uses; `timeout` applies to each collective.
  DeviceGroups(ProcessGroups& groups, const c10::intrusive_ptr<c10d::Store>& store, const at::Device& device,
               std::chrono::milliseconds timeout, const std::shared_ptr<CollectiveCounts>& counts);
  // Without finish(), aborts collectives in flight: after an error, other ranks may no longer take part.
  ~DeviceGroups();

  // Call after the last collective of every rank. Waits for collectives in flight and disconnects.
  void finish();

  // Describes the failure of a collective that the host does not wait for; empty if there is none. After a
  // failure the device may never finish. Thread-safe.
  std::string failure() const;

 private:
  struct Group {
    std::string name;
    c10::intrusive_ptr<c10d::Backend> backend;
  };
  mutable std::mutex mutex_;
  std::vector<Group> groups_;
};

}  // namespace dtopp::distributed
