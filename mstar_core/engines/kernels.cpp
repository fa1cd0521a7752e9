// CPU kernels for small batches of tokens: linear layers, norms, rotary angles, gated activations, paged attention.
//
// Plain C functions on raw pointers, one set for float and one for bfloat16; all sums are kept in float. A row's result
// is computed in one fixed order that depends on its own values and sizes alone, so it has the same bits in any batch
// and with any number of threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

constexpr int kLanes = 16;
constexpr int kVectors = 4;                   // vectors of outputs per block of a packed weight
constexpr int kRows = 6;                      // rows computed together: kRows * kVectors sums fit 32 registers
constexpr int kBlock = kLanes * kVectors;     // outputs per block
constexpr int kAhead = 32;                    // groups of inputs between a weight's prefetch and its use
constexpr int64_t kSerial = 1 << 15;          // element-wise work below this many elements is not worth two threads

typedef float Floats __attribute__((vector_size(64), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(64), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(64), aligned(4)));
typedef uint16_t Halves __attribute__((vector_size(32), aligned(2)));

struct bf16 {
  uint16_t bits;
};

inline float widen(float value) { return value; }

inline float widen(bf16 value) {
  uint32_t bits = uint32_t(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

template <typename T>
inline T narrow(float value);

template <>
inline float narrow<float>(float value) {
  return value;
}

template <>
inline bf16 narrow<bf16>(float value) {  // to nearest, ties to even; a NaN stays one
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (value != value) return bf16{uint16_t((bits >> 16) | 0x40)};
  return bf16{uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

inline Floats splat(float v) { return Floats{v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v}; }

inline Floats load(const float* from) {
  Floats result;
  std::memcpy(&result, from, sizeof result);
  return result;
}

inline Floats load(const bf16* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
#if defined(__AVX512F__)  // one instruction, which the compiler does not find
  return (Floats)(Words)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)halves), 16);
#else
  return (Floats)(__builtin_convertvector(halves, Words) << 16);
#endif
}

inline void store(float* to, Floats values) { std::memcpy(to, &values, sizeof values); }

inline void store(bf16* to, Floats values) {
  const Words bits = (Words)values;
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Halves halves = __builtin_convertvector(values == values ? rounded : (bits >> 16) | 0x40, Halves);
  std::memcpy(to, &halves, sizeof halves);
}

inline float sum(Floats values) {
  float halves[8];
  for (int lane = 0; lane < 8; ++lane) halves[lane] = values[lane] + values[lane + 8];
  for (int width = 4; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) halves[lane] += halves[lane + width];
  return halves[0];
}

// e to the power of each value: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (coefficients of Cephes' expf).
inline Floats exponential(Floats x) {
  const Floats low = splat(-87.0f), high = splat(88.0f);
  x = x < low ? low : x;
  x = x > high ? high : x;
  Floats scaled = x * 1.44269504088896341f;
  Ints whole = __builtin_convertvector(scaled + (scaled < 0.0f ? splat(-0.5f) : splat(0.5f)), Ints);
  Floats n = __builtin_convertvector(whole, Floats);
  Floats r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Floats p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  Ints power = (whole + 127) << 23;
  return p * (Floats)power;
}

// ---- linear layers ----------------------------------------------------------------------------------------------
//
// A packed weight holds blocks of kBlock outputs. Within a block, inputs come in pairs (bfloat16) or singly (float);
// for each of these the weights of the block's outputs lie side by side, a pair's two numbers next to each other.

template <typename T>
constexpr int inputs_per_group() {
  return sizeof(T) == 2 ? 2 : 1;
}

inline Floats add_pairs(Floats sums, Words weights, Words pair) {
#if defined(__AVX512BF16__)
  return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)(__m512i)weights, (__m512bh)(__m512i)pair);
#else
  sums += (Floats)(weights << 16) * (Floats)(pair << 16);
  return sums + (Floats)(weights & 0xffff0000u) * (Floats)(pair & 0xffff0000u);
#endif
}

// Adds the products of one group of inputs to the sums of `rows` rows. Weights stream from memory once, so they are
// asked for well before they are needed: without that, small batches wait for them.
template <int rows>
inline void add_group(Floats sums[rows][kVectors], const bf16* weights, const bf16* x, int64_t stride) {
  Words pairs[kVectors];
  for (int vector = 0; vector < kVectors; ++vector) {
    std::memcpy(&pairs[vector], weights + vector * 2 * kLanes, sizeof pairs[vector]);
    __builtin_prefetch(weights + kAhead * 2 * kBlock + vector * 2 * kLanes);
  }
  for (int row = 0; row < rows; ++row) {
    uint32_t word;
    std::memcpy(&word, x + row * stride, 4);
    const Words pair = Words{} + word;
    for (int vector = 0; vector < kVectors; ++vector) sums[row][vector] = add_pairs(sums[row][vector], pairs[vector], pair);
  }
}

template <int rows>
inline void add_group(Floats sums[rows][kVectors], const float* weights, const float* x, int64_t stride) {
  Floats wide[kVectors];
  for (int vector = 0; vector < kVectors; ++vector) {
    wide[vector] = load(weights + vector * kLanes);
    __builtin_prefetch(weights + kAhead * kBlock + vector * kLanes);
  }
  for (int row = 0; row < rows; ++row) {
    const Floats value = splat(x[row * stride]);
    for (int vector = 0; vector < kVectors; ++vector) sums[row][vector] += wide[vector] * value;
  }
}

template <typename T, int rows>
void block_product(const T* x, const T* weights, const T* bias, T* y, int64_t inputs, int64_t outputs, int64_t width) {
  Floats sums[rows][kVectors] = {};
  for (int64_t input = 0; input < inputs; input += inputs_per_group<T>())
    add_group<rows>(sums, weights + input * kBlock, x + input, inputs);
  for (int row = 0; row < rows; ++row) {
    float result[kBlock];
    for (int vector = 0; vector < kVectors; ++vector) store(result + vector * kLanes, sums[row][vector]);
    for (int64_t output = 0; bias && output < width; ++output) result[output] += widen(bias[output]);
    T* to = y + row * outputs;
    int64_t output = 0;
    for (; output + kLanes <= width; output += kLanes) store(to + output, load(result + output));
    for (; output < width; ++output) to[output] = narrow<T>(result[output]);
  }
}

template <typename T>
void block_products(const T* x, const T* weights, const T* bias, T* y, int64_t rows, int64_t inputs, int64_t outputs,
                    int64_t width) {
  for (; rows >= kRows; rows -= kRows, x += kRows * inputs, y += kRows * outputs)
    block_product<T, kRows>(x, weights, bias, y, inputs, outputs, width);
  switch (rows) {
    case 5: return block_product<T, 5>(x, weights, bias, y, inputs, outputs, width);
    case 4: return block_product<T, 4>(x, weights, bias, y, inputs, outputs, width);
    case 3: return block_product<T, 3>(x, weights, bias, y, inputs, outputs, width);
    case 2: return block_product<T, 2>(x, weights, bias, y, inputs, outputs, width);
    case 1: return block_product<T, 1>(x, weights, bias, y, inputs, outputs, width);
  }
}

template <typename T>
void linear(const T* x, const T* packed, const T* bias, T* y, int64_t rows, int64_t inputs, int64_t outputs,
            int threads) {
  const int64_t blocks = (outputs + kBlock - 1) / kBlock;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = block * kBlock;
    block_products<T>(x, packed + first * inputs, bias ? bias + first : nullptr, y + first, rows, inputs, outputs,
                      std::min<int64_t>(kBlock, outputs - first));
  }
}

template <typename T>
void pack(const T* weight, T* packed, int64_t inputs, int64_t outputs) {
  constexpr int per = inputs_per_group<T>();
  const int64_t blocks = (outputs + kBlock - 1) / kBlock;
#pragma omp parallel for schedule(static)
  for (int64_t block = 0; block < blocks; ++block) {
    T* to = packed + block * kBlock * inputs;
    for (int64_t group = 0; group < inputs / per; ++group)
      for (int lane = 0; lane < kBlock; ++lane)
        for (int part = 0; part < per; ++part) {
          const int64_t output = block * kBlock + lane;
          *to++ = output < outputs ? weight[output * inputs + group * per + part] : T{};
        }
  }
}

// ---- element-wise layers ----------------------------------------------------------------------------------------

template <typename T>
void rms_norm(const T* x, const T* weight, T* y, int64_t rows, int64_t width, int64_t x_stride, float eps,
              int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * width > kSerial)
  for (int64_t row = 0; row < rows; ++row) {
    const T* from = x + row * x_stride;
    T* to = y + row * width;
    Floats squares = {};
    int64_t place = 0;
    for (; place + kLanes <= width; place += kLanes) {
      const Floats values = load(from + place);
      squares += values * values;
    }
    float total = sum(squares);
    for (int64_t tail = place; tail < width; ++tail) total += widen(from[tail]) * widen(from[tail]);
    const float scale = 1.0f / std::sqrt(total / float(width) + eps);
    for (place = 0; place + kLanes <= width; place += kLanes)
      store(to + place, load(from + place) * scale * load(weight + place));
    for (; place < width; ++place) to[place] = narrow<T>(widen(from[place]) * scale * widen(weight[place]));
  }
}

template <typename T>
void silu_multiply(const T* gate_up, T* y, int64_t rows, int64_t width, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * width > kSerial)
  for (int64_t row = 0; row < rows; ++row) {
    const T* gates = gate_up + row * 2 * width;
    const T* ups = gates + width;
    T* to = y + row * width;
    int64_t place = 0;
    for (; place + kLanes <= width; place += kLanes) {
      const Floats gate = load(gates + place);
      store(to + place, gate / (1.0f + exponential(-gate)) * load(ups + place));
    }
    for (; place < width; ++place) {
      const float gate = widen(gates[place]);
      to[place] = narrow<T>(gate / (1.0f + exponential(splat(-gate))[0]) * widen(ups[place]));
    }
  }
}

// Rotates the first `heads` heads of each token in place. cos and sin are [tokens, size], the first half of sin
// negated; channel i is paired with channel i + size / 2.
template <typename T>
void rotate(T* x, const T* cosines, const T* sines, int64_t tokens, int64_t heads, int64_t token_stride,
            int64_t head_dim, int64_t size, int threads) {
  const int64_t half = size / 2;
#pragma omp parallel for schedule(static) num_threads(threads) if (tokens * heads * size > kSerial)
  for (int64_t token = 0; token < tokens; ++token) {
    const T *cosine = cosines + token * size, *sine = sines + token * size;
    for (int64_t head = 0; head < heads; ++head) {
      T* low = x + token * token_stride + head * head_dim;
      T* high = low + half;
      int64_t i = 0;
      for (; i + kLanes <= half; i += kLanes) {
        const Floats a = load(low + i), b = load(high + i);
        store(low + i, a * load(cosine + i) + b * load(sine + i));
        store(high + i, b * load(cosine + half + i) + a * load(sine + half + i));
      }
      for (; i < half; ++i) {
        const float a = widen(low[i]), b = widen(high[i]);
        low[i] = narrow<T>(a * widen(cosine[i]) + b * widen(sine[i]));
        high[i] = narrow<T>(b * widen(cosine[half + i]) + a * widen(sine[half + i]));
      }
    }
  }
}

// ---- paged attention of one new token per request ---------------------------------------------------------------
//
// Queries [requests, heads, head_dim], keys and values [slots, kv_heads, head_dim]; head_dim is a multiple of kLanes.
// With `slots` the new keys and values are written first, all of them before any is read.

// Halves the number of vectors: neighbouring lanes are added, and two vectors become one.
template <int count>
inline void add_neighbours(Floats* vectors) {
#pragma GCC unroll 16
  for (int i = 0; i < count; ++i) {
    const Floats a = vectors[2 * i], b = vectors[2 * i + 1];
    vectors[i] = __builtin_shuffle(a, b, Ints{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30}) +
                 __builtin_shuffle(a, b, Ints{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31});
  }
}

// The sums of 16 vectors, one per lane.
inline Floats sums_of(Floats* vectors) {
  add_neighbours<8>(vectors);
  add_neighbours<4>(vectors);
  add_neighbours<2>(vectors);
  add_neighbours<1>(vectors);
  return vectors[0];
}

// One head's keys or values of 16 tokens from `first` on, widened; zeros beyond `length`.
template <typename T>
inline void gather_block(float* block, const T* cache, const int64_t* pages, int64_t first, int64_t length,
                         int64_t page_size, int64_t head_dim, int64_t slot_stride) {
  int64_t column = first / page_size, place = first % page_size;
  const int64_t rows = std::min<int64_t>(kLanes, length - first);
  for (int64_t row = 0; row < rows; ++row, block += head_dim) {
    const T* from = cache + (pages[column] * page_size + place) * slot_stride;
    for (int64_t i = 0; i < head_dim; i += kLanes) store(block + i, load(from + i));
    if (++place == page_size) {
      ++column;
      place = 0;
    }
  }
  std::fill(block, block + (kLanes - rows) * head_dim, 0.0f);
}

// Turns scores into weights, with zeros up to the next multiple of kLanes; returns one over their sum.
inline float soften(float* scores, int64_t count) {
  const int64_t padded = (count + kLanes - 1) / kLanes * kLanes;
  for (int64_t i = count; i < padded; ++i) scores[i] = -INFINITY;
  Floats peaks = load(scores);
  for (int64_t i = kLanes; i < padded; i += kLanes) {
    const Floats values = load(scores + i);
    peaks = values > peaks ? values : peaks;
  }
  float largest = peaks[0];
  for (int lane = 1; lane < kLanes; ++lane) largest = std::max(largest, peaks[lane]);
  Floats total = {};
  for (int64_t i = 0; i < padded; i += kLanes) {
    const Floats values = load(scores + i);
    const Floats weights = values == -INFINITY ? Floats{} : exponential(values - largest);
    store(scores + i, weights);
    total += weights;
  }
  return 1.0f / sum(total);
}

// scores[16] of one query against a block of keys.
inline void score_block(const float* query, const float* block, int64_t head_dim, float* scores) {
  Floats partial[kLanes] = {};
  for (int64_t i = 0; i < head_dim; i += kLanes) {
    const Floats part = load(query + i);
#pragma GCC unroll 16
    for (int row = 0; row < kLanes; ++row) partial[row] += part * load(block + row * head_dim + i);
  }
  store(scores, sums_of(partial));
}

// Adds a block of values, weighted, to a head's sums.
inline void mix_block(const float* weights, const float* block, int64_t head_dim, float* sums) {
  for (int64_t i = 0; i < head_dim; i += kLanes) {
    Floats total = load(sums + i);
#pragma GCC unroll 16
    for (int row = 0; row < kLanes; ++row) total += load(block + row * head_dim + i) * weights[row];
    store(sums + i, total);
  }
}

template <typename T>
void attend_head(const T* queries, const T* keys, const T* values, T* out, const int64_t* pages, int64_t length,
                 int64_t page_size, int64_t group, int64_t head_dim, int64_t slot_stride, float scale,
                 std::vector<float>& scratch) {
  const int64_t padded = (length + kLanes - 1) / kLanes * kLanes;
  scratch.resize(group * (padded + 2 * head_dim + 1) + kLanes * head_dim);
  float* scores = scratch.data();  // [group, padded]
  float* query = scores + group * padded;
  float* sums = query + group * head_dim;
  float* inverse = sums + group * head_dim;
  float* block = inverse + group;  // [16, head_dim]
  for (int64_t i = 0; i < group * head_dim; ++i) query[i] = widen(queries[i]) * scale;
  std::fill(sums, sums + group * head_dim, 0.0f);
  for (int64_t first = 0; first < length; first += kLanes) {
    gather_block(block, keys, pages, first, length, page_size, head_dim, slot_stride);
    for (int64_t head = 0; head < group; ++head)
      score_block(query + head * head_dim, block, head_dim, scores + head * padded + first);
  }
  for (int64_t head = 0; head < group; ++head) inverse[head] = soften(scores + head * padded, length);
  for (int64_t first = 0; first < length; first += kLanes) {
    gather_block(block, values, pages, first, length, page_size, head_dim, slot_stride);
    for (int64_t head = 0; head < group; ++head)
      mix_block(scores + head * padded + first, block, head_dim, sums + head * head_dim);
  }
  for (int64_t head = 0; head < group; ++head)
    for (int64_t i = 0; i < head_dim; i += kLanes)
      store(out + head * head_dim + i, load(sums + head * head_dim + i) * inverse[head]);
}

template <typename T>
void paged_decode(const T* queries, int64_t query_stride, const T* new_keys, const T* new_values, int64_t new_stride,
                  T* keys, T* values, T* out, const int64_t* slots, const int64_t* pages, const int64_t* lengths,
                  int64_t requests, int64_t columns, int64_t page_size, int64_t heads, int64_t kv_heads,
                  int64_t head_dim, float scale, int threads) {
  const int64_t slot_stride = kv_heads * head_dim, group = heads / kv_heads;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> scratch;
#pragma omp for schedule(static)
    for (int64_t request = 0; request < (slots ? requests : 0); ++request) {
      const int64_t slot = slots[request] * slot_stride;
      std::memcpy(keys + slot, new_keys + request * new_stride, slot_stride * sizeof(T));
      std::memcpy(values + slot, new_values + request * new_stride, slot_stride * sizeof(T));
    }
#pragma omp for schedule(static)
    for (int64_t task = 0; task < requests * kv_heads; ++task) {
      const int64_t request = task / kv_heads, head = task % kv_heads;
      attend_head(queries + request * query_stride + head * group * head_dim, keys + head * head_dim,
                  values + head * head_dim, out + (request * heads + head * group) * head_dim,
                  pages + request * columns, lengths[request], page_size, group, head_dim, slot_stride, scale, scratch);
    }
  }
}

}  // namespace

#define EXPORT(T, suffix)                                                                                             \
  extern "C" void mstar_pack_##suffix(const T* weight, T* packed, int64_t inputs, int64_t outputs) {                  \
    pack<T>(weight, packed, inputs, outputs);                                                                         \
  }                                                                                                                   \
  extern "C" void mstar_linear_##suffix(const T* x, const T* packed, const T* bias, T* y, int64_t rows,               \
                                        int64_t inputs, int64_t outputs, int threads) {                               \
    linear<T>(x, packed, bias, y, rows, inputs, outputs, threads);                                                    \
  }                                                                                                                   \
  extern "C" void mstar_rms_norm_##suffix(const T* x, const T* weight, T* y, int64_t rows, int64_t width,             \
                                          int64_t x_stride, float eps, int threads) {                                 \
    rms_norm<T>(x, weight, y, rows, width, x_stride, eps, threads);                                                   \
  }                                                                                                                   \
  extern "C" void mstar_silu_multiply_##suffix(const T* gate_up, T* y, int64_t rows, int64_t width, int threads) {    \
    silu_multiply<T>(gate_up, y, rows, width, threads);                                                               \
  }                                                                                                                   \
  extern "C" void mstar_rotate_##suffix(T* x, const T* cosines, const T* sines, int64_t tokens, int64_t heads,        \
                                        int64_t token_stride, int64_t head_dim, int64_t size, int threads) {          \
    rotate<T>(x, cosines, sines, tokens, heads, token_stride, head_dim, size, threads);                               \
  }                                                                                                                   \
  extern "C" void mstar_paged_decode_##suffix(                                                                        \
      const T* queries, int64_t query_stride, const T* new_keys, const T* new_values, int64_t new_stride, T* keys,    \
      T* values, T* out, const int64_t* slots, const int64_t* pages, const int64_t* lengths, int64_t requests,        \
      int64_t columns, int64_t page_size, int64_t heads, int64_t kv_heads, int64_t head_dim, float scale,             \
      int threads) {                                                                                                  \
    paged_decode<T>(queries, query_stride, new_keys, new_values, new_stride, keys, values, out, slots, pages,         \
                    lengths, requests, columns, page_size, heads, kv_heads, head_dim, scale, threads);                \
  }

// The outputs per block of a packed weight, or 0 where registers are too few and too short for `linear` to be fast.
extern "C" int64_t mstar_block() {
#if defined(__AVX512F__)
  return kBlock;
#else
  return 0;
#endif
}

EXPORT(float, float32)
EXPORT(bf16, bfloat16)
