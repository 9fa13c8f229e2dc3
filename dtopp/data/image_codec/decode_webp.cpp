#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include <webp/decode.h>
#include <webp/demux.h>

#include "dtopp/base/errors.h"
#include "dtopp/data/image_codec/decoders.h"
#include "dtopp/data/image_codec/orientation.h"

namespace dtopp::data {
namespace {

struct FreeDemuxer {
  void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
};
struct FreeDecoder {
  void operator()(WebPAnimDecoder* decoder) const { WebPAnimDecoderDelete(decoder); }
};

[[noreturn]] void fail_webp() { throw DataError("damaged WebP"); }

// Decodes the first frame onto its canvas. Pixels outside the frame are black.
void decode_animation(const WebPData& data, Picture& picture) {
  WebPAnimDecoderOptions options;
  if (WebPAnimDecoderOptionsInit(&options) == 0) throw std::bad_alloc();
  options.use_threads = 0;
  const std::unique_ptr<WebPAnimDecoder, FreeDecoder> decoder(WebPAnimDecoderNew(&data, &options));
  uint8_t* rgba = nullptr;
  int time = 0;
  if (!decoder || WebPAnimDecoderGetNext(decoder.get(), &rgba, &time) == 0) fail_webp();
  const size_t pixels = picture.pixels.size() / 3;
  for (size_t i = 0; i < pixels; ++i) std::memcpy(picture.pixels.data() + 3 * i, rgba + 4 * i, 3);
}

int read_webp_orientation(const WebPDemuxer* demuxer) {
  WebPChunkIterator chunk;
  int orientation = 1;
  if (WebPDemuxGetChunk(demuxer, "EXIF", 1, &chunk) != 0)
    orientation = exif_orientation(std::as_bytes(std::span(chunk.chunk.bytes, chunk.chunk.size)));
  WebPDemuxReleaseChunkIterator(&chunk);
  return orientation;
}

}  // namespace

RawPicture decode_webp(std::span<const std::byte> file) {
  const WebPData data{reinterpret_cast<const uint8_t*>(file.data()), file.size()};
  const std::unique_ptr<WebPDemuxer, FreeDemuxer> demuxer(WebPDemux(&data));  // null also if it is truncated
  if (!demuxer) fail_webp();
  const auto height = WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_HEIGHT);
  const auto width = WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_WIDTH);
  require_size(height, width);
  RawPicture raw;
  raw.picture = Picture(static_cast<int>(height), static_cast<int>(width), 3);
  raw.orientation = read_webp_orientation(demuxer.get());
  if ((WebPDemuxGetI(demuxer.get(), WEBP_FF_FORMAT_FLAGS) & ANIMATION_FLAG) != 0) {
    decode_animation(data, raw.picture);
  } else {
    WebPBitstreamFeatures features;
    if (WebPGetFeatures(data.bytes, data.size, &features) != VP8_STATUS_OK ||
        features.width != raw.picture.width || features.height != raw.picture.height ||
        !WebPDecodeRGBInto(data.bytes, data.size, raw.picture.pixels.data(), raw.picture.pixels.size(),
                           static_cast<int>(raw.picture.row_bytes())))
      fail_webp();
  }
  return raw;
}

}  // namespace dtopp::data
