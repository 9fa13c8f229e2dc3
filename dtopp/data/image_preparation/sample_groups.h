// Neighbouring members of an archive or a folder whose names differ in their last ending alone are one
// sample, as in WebDataset: dog/0001.jpg, dog/0001.cls, dog/0001.npy.
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
    std::string cause;  // not empty: why it cannot be used
  };
  virtual std::optional<Named> next_member() = 0;
  // Of the member that next_member() gave last.
  virtual RawMember content(bool load) = 0;
  // The member's name as messages have it.
  virtual std::string place_of(const std::string& name) const = 0;

 private:
  void add(RawSample& sample, const Named& member, MemberRole role, bool load);

  std::optional<Named> pending_;  // begins the next sample
};

}  // namespace dtopp
