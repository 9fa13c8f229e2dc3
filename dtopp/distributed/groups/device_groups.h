// What ranks exchange on CUDA devices, over NCCL (in libdtopp_cuda.so), beside what they do on their hosts.
// A tensor travels by where it lies: a device's by NCCL, the CPU's, and a barrier, by Gloo.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dtopp/distributed/groups/world.h"

namespace c10d {
class Backend;
}  // namespace c10d

namespace dtopp {

// The two sides of one group of ranks, as one. Both serve nothing else.
std::unique_ptr<Collectives> host_and_device(std::shared_ptr<Collectives> host,
                                             std::shared_ptr<Collectives> device);

class DeviceGroups {
 public:
  // From now on the groups of `world` of several ranks take what lies on `device`, too, a CUDA device that is
  // this rank's alone. timeout: of a collective. ResourceError where ranks cannot be connected. Collective.
  DeviceGroups(World& world, const c10::intrusive_ptr<c10d::Store>& store, const at::Device& device,
               std::chrono::milliseconds timeout, const std::shared_ptr<CollectiveCounts>& counts);
  // Without finish() breaks off what is in flight: after an error, where others may not take part any more.
  ~DeviceGroups();
  DeviceGroups(const DeviceGroups&) = delete;
  DeviceGroups& operator=(const DeviceGroups&) = delete;

  // After the last collective of every rank: waits for those in flight and disconnects. Collective.
  void finish();

  // What a collective failed by that the host does not wait for; empty: nothing. The device may then wait for
  // ever. From any thread.
  std::string failure() const;

 private:
  struct Group {
    std::string name;
    c10::intrusive_ptr<c10d::Backend> backend;
  };
  mutable std::mutex mutex_;
  std::vector<Group> groups_;
};

}  // namespace dtopp
