// Groups the members of an archive or a folder into samples.
//
// As in WebDataset, adjacent members form one sample if their names differ only in the last ending:
// dog/0001.jpg, dog/0001.cls, dog/0001.npy.
#pragma once

#include <optional>
#include <string>

#include "dtopp/data/image_preparation/image_source.h"

namespace dtopp {

class SampleGroups : public ImageSource {
 public:
  std::optional<RawSample> next(bool load) final;

 protected:
  struct Named {
    std::string name;
    std::string cause;  // if not empty, the reason why the member is unusable
  };
  // Returns the next member; nullopt after the last one.
  virtual std::optional<Named> next_member() = 0;
  // Returns the content of the member that next_member() returned last.
  virtual RawMember content(bool load) = 0;
  // Returns the member's name for messages.
  virtual std::string location_of(const std::string& name) const = 0;

 private:
  void add(RawSample& sample, const Named& member, MemberRole role, bool load);

  std::optional<Named> pending_;  // the member that begins the next sample
};

}  // namespace dtopp
