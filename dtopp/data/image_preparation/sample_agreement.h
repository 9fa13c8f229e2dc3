// The first sample decides what all samples of a folder have in common.
#pragma once

#include <string>

#include "dtopp/data/image_preparation/prepared_image.h"
#include "dtopp/data/images/image_facts.h"

namespace dtopp {

// Why the sample does not go with those before it (facts.images of them); empty when it does. UsageError
// where the job's scale and shift do not go with the first one.
std::string disagreement(const ImageFacts& facts, const ClassPlan& plan, const PreparedImage& image);

// Takes the facts of a sample that agrees: of the first what it decides, of each its class and the length of
// its text.
void agree(ImageFacts& facts, const ClassPlan& plan, const PreparedImage& image);

}  // namespace dtopp
