// Checks that all samples of a folder agree: the first sample determines kind, shape and types of all.
#pragma once

#include <string>

#include "dtopp/data/image_preparation/prepared_image.h"
#include "dtopp/data/images/image_facts.h"

namespace dtopp {

// Returns why the sample does not agree with the facts.images samples before it; empty if it agrees. Throws
// UsageError if the job's scale and shift do not fit the first sample.
std::string disagreement(const ImageFacts& facts, const ClassPlan& plan, const PreparedImage& image);

// Updates the facts with a sample that agrees. The first sample sets kind, shape and types; every sample may
// add a class and extend the longest text.
void agree(ImageFacts& facts, const ClassPlan& plan, const PreparedImage& image);

}  // namespace dtopp
