// Adds NCCL collectives on CUDA devices to a run's groups. NCCL is in libdtopp_cuda.so.
//
// The device of a tensor selects the transport: NCCL for CUDA tensors, Gloo for CPU tensors and for barriers.
//
// Throws:        ResourceError if the ranks cannot be connected
// Collective:    the constructor and finish(), on every rank of the run, in the same order
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dtopp/distributed/groups/process_groups.h"

namespace c10d {
class Backend;
}  // namespace c10d

namespace dtopp::distributed {

// Combines the host and the device transport of one group. The result must own both alone.
std::unique_ptr<Collectives> host_and_device(std::shared_ptr<Collectives> host,
                                             std::shared_ptr<Collectives> device);

class DeviceGroups {
 public:
  // Replaces every group of `groups` with several ranks by one that also accepts tensors on `device`.
  // `device` is a CUDA device that no other rank uses; `timeout` applies to each collective. Collective.
  DeviceGroups(ProcessGroups& groups, const c10::intrusive_ptr<c10d::Store>& store, const at::Device& device,
               std::chrono::milliseconds timeout, const std::shared_ptr<CollectiveCounts>& counts);
  // Without finish(), aborts collectives in flight: after an error, other ranks may no longer take part.
  ~DeviceGroups();
  DeviceGroups(const DeviceGroups&) = delete;
  DeviceGroups& operator=(const DeviceGroups&) = delete;

  // Call after the last collective of every rank. Waits for collectives in flight and disconnects.
  // Collective.
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
