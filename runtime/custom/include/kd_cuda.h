// What the body of a `cuda_kernel` finds without including anything: fixed-width integers, half and bfloat16,
// complex64, array geometry, vector loads and stores, and atomics on every element type.
//
// KD_USE_STD is defined by the generated source if the kernel mentions cuda::std; what needs it is slow to compile.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#ifdef KD_USE_STD
#if __has_include(<cuda/std/algorithm>)
#include <cuda/std/algorithm>
#endif
#include <cuda/std/array>
#include <cuda/std/cmath>
#include <cuda/std/complex>
#include <cuda/std/cstdint>
#include <cuda/std/limits>
#include <cuda/std/tuple>
#include <cuda/std/type_traits>
#include <cuda/std/utility>
#endif

using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using uint = unsigned int;

namespace mlx::core::cu {

using float16_t = __half;
using bfloat16_t = __nv_bfloat16;

constexpr int WARP_SIZE = 32;
constexpr int MAX_NDIM = 10;

// --- geometry of arrays ---------------------------------------------------------------------------

// A fixed array passed by value as a kernel parameter; decays to a pointer as C arrays do.
template <typename T>
struct PerAxis {
  T values[MAX_NDIM];
  constexpr const T* data() const { return values; }
  constexpr int size() const { return MAX_NDIM; }
  constexpr const T* begin() const { return values; }
  constexpr const T* end() const { return values + MAX_NDIM; }
  constexpr const T& operator[](int axis) const { return values[axis]; }
  constexpr operator const T*() const { return values; }
};
using Shape = PerAxis<int32_t>;
using Strides = PerAxis<int64_t>;

#ifdef KD_USE_STD
template <typename I>
using Locations2 = ::cuda::std::tuple<I, I>;
template <typename I>
using Locations3 = ::cuda::std::tuple<I, I, I>;
#else
template <typename I>
struct Locations2 {
  I first, second;
};
template <typename I>
struct Locations3 {
  I first, second, third;
};
#endif

template <typename A, typename B>
constexpr auto ceil_div(A a, B b) {
  return (a + (b - 1)) / b;
}

// The offset, in elements, of row-major element `elem` of an array with these strides. Signed and 64 bits wide
// whatever `elem` is, so that negative strides and large arrays work.
template <typename I>
constexpr int64_t elem_to_loc(I elem, const int* shape, const int64_t* strides, int ndim) {
  int64_t loc = 0;
  for (int axis = ndim - 1; axis >= 0 && elem > 0; --axis) {
    loc += int64_t(elem % I(shape[axis])) * strides[axis];
    elem /= I(shape[axis]);
  }
  return loc;
}

// The same for two and for three arrays of one shape.
template <typename I>
constexpr Locations2<int64_t> elem_to_loc(
    I elem, const int* shape, const int64_t* a_strides, const int64_t* b_strides, int ndim) {
  return {elem_to_loc(elem, shape, a_strides, ndim), elem_to_loc(elem, shape, b_strides, ndim)};
}

template <typename I>
constexpr Locations3<int64_t> elem_to_loc(
    I elem,
    const int* shape,
    const int64_t* a_strides,
    const int64_t* b_strides,
    const int64_t* c_strides,
    int ndim) {
  return {
      elem_to_loc(elem, shape, a_strides, ndim),
      elem_to_loc(elem, shape, b_strides, ndim),
      elem_to_loc(elem, shape, c_strides, ndim)};
}

// The same with the number of axes known to the compiler, which unrolls the loop.
template <int NDIM, typename I>
constexpr int64_t elem_to_loc_nd(I elem, const int* shape, const int64_t* strides) {
  int64_t loc = 0;
#pragma unroll
  for (int axis = NDIM - 1; axis >= 0; --axis) {
    loc += int64_t(elem % I(shape[axis])) * strides[axis];
    elem /= I(shape[axis]);
  }
  return loc;
}

template <int NDIM, typename I>
constexpr Locations2<int64_t> elem_to_loc_nd(
    I elem, const int* shape, const int64_t* a_strides, const int64_t* b_strides) {
  return {elem_to_loc_nd<NDIM>(elem, shape, a_strides), elem_to_loc_nd<NDIM>(elem, shape, b_strides)};
}

template <int NDIM, typename I>
constexpr Locations3<int64_t> elem_to_loc_nd(
    I elem, const int* shape, const int64_t* a_strides, const int64_t* b_strides, const int64_t* c_strides) {
  return {
      elem_to_loc_nd<NDIM>(elem, shape, a_strides),
      elem_to_loc_nd<NDIM>(elem, shape, b_strides),
      elem_to_loc_nd<NDIM>(elem, shape, c_strides)};
}

// Walks an array in row-major order without a division at each step: `next` moves on by one element.
template <int NDIM, bool General = true, typename I = int64_t>
struct LoopedElemToLoc {
  int ndim;
  I offset;
  I index[NDIM > 0 ? NDIM : 1];

  constexpr explicit LoopedElemToLoc(int ndim_) : ndim(General ? ndim_ : NDIM), offset(0), index{} {}

  constexpr void next(const int* shape, const int64_t* strides) { next(1, shape, strides); }

  constexpr void next(int n, const int* shape, const int64_t* strides) {
    I carry = n;
    for (int axis = ndim - 1; axis >= 0 && carry > 0; --axis) {
      I moved = index[axis] + carry;
      I now = axis > 0 ? moved % shape[axis] : moved;
      carry = axis > 0 ? moved / shape[axis] : 0;
      offset += (now - index[axis]) * I(strides[axis]);
      index[axis] = now;
    }
  }

  constexpr I location() const { return offset; }
};

// --- 16-bit floats with other numbers -----------------------------------------------------------------

// CUDA's own types convert both ways, so that `half + int` and `half + float` are ambiguous. Here an integer is taken
// in the 16-bit type, and with a float or double the result is that.
namespace detail {
template <typename T>
constexpr int rank = 0;  // 1: integer, 2: float or double, 3: a 16-bit float
template <> inline constexpr int rank<bool> = 1;
template <> inline constexpr int rank<char> = 1;
template <> inline constexpr int rank<int8_t> = 1;
template <> inline constexpr int rank<uint8_t> = 1;
template <> inline constexpr int rank<int16_t> = 1;
template <> inline constexpr int rank<uint16_t> = 1;
template <> inline constexpr int rank<int32_t> = 1;
template <> inline constexpr int rank<uint32_t> = 1;
template <> inline constexpr int rank<long> = 1;
template <> inline constexpr int rank<unsigned long> = 1;
template <> inline constexpr int rank<int64_t> = 1;
template <> inline constexpr int rank<uint64_t> = 1;
template <> inline constexpr int rank<float> = 2;
template <> inline constexpr int rank<double> = 2;
template <> inline constexpr int rank<__half> = 3;
template <> inline constexpr int rank<__nv_bfloat16> = 3;

template <typename A, typename B, int RankA = rank<A>, int RankB = rank<B>>
struct Meet {};
template <typename A, typename B>
struct Meet<A, B, 3, 1> {
  using type = A;
};
template <typename A, typename B>
struct Meet<A, B, 1, 3> {
  using type = B;
};
template <typename A, typename B>
struct Meet<A, B, 3, 2> {
  using type = B;
};
template <typename A, typename B>
struct Meet<A, B, 2, 3> {
  using type = A;
};
template <typename T, typename A>
inline T as(const A& a) {
  if constexpr (rank<A> == 3) return T(float(a));
  else return T(a);
}
}  // namespace detail

#define KD_MIXED(op)                                                          \
  template <typename A, typename B, typename C = typename detail::Meet<A, B>::type> \
  inline auto operator op(const A& a, const B& b) {                           \
    return detail::as<C>(a) op detail::as<C>(b);                              \
  }
KD_MIXED(+)
KD_MIXED(-)
KD_MIXED(*)
KD_MIXED(/)
KD_MIXED(==)
KD_MIXED(!=)
KD_MIXED(<)
KD_MIXED(<=)
KD_MIXED(>)
KD_MIXED(>=)
#undef KD_MIXED

// With CUDA's own, `max(half, half)` is ambiguous between all that a half converts to.
#define KD_SMALLEST(T)                                            \
  inline T max(const T& a, const T& b) { return ::__hmax(a, b); } \
  inline T min(const T& a, const T& b) { return ::__hmin(a, b); }
KD_SMALLEST(__half)
KD_SMALLEST(__nv_bfloat16)
#undef KD_SMALLEST
using ::max;
using ::min;

// --- complex64 ------------------------------------------------------------------------------------

struct alignas(8) complex64_t {
  float re, im;

  complex64_t() = default;
  constexpr complex64_t(float real, float imag = 0.0f) : re(real), im(imag) {}
  constexpr float real() const { return re; }
  constexpr float imag() const { return im; }
  constexpr void real(float value) { re = value; }
  constexpr void imag(float value) { im = value; }

  constexpr complex64_t operator-() const { return {-re, -im}; }
  constexpr complex64_t operator+() const { return *this; }
  constexpr complex64_t& operator+=(complex64_t b) { return *this = {re + b.re, im + b.im}; }
  constexpr complex64_t& operator-=(complex64_t b) { return *this = {re - b.re, im - b.im}; }
  constexpr complex64_t& operator*=(complex64_t b) {
    return *this = {re * b.re - im * b.im, re * b.im + im * b.re};
  }
  constexpr complex64_t& operator/=(complex64_t b) {
    float norm = b.re * b.re + b.im * b.im;
    return *this = {(re * b.re + im * b.im) / norm, (im * b.re - re * b.im) / norm};
  }
};

constexpr complex64_t operator+(complex64_t a, complex64_t b) { return a += b; }
constexpr complex64_t operator-(complex64_t a, complex64_t b) { return a -= b; }
constexpr complex64_t operator*(complex64_t a, complex64_t b) { return a *= b; }
constexpr complex64_t operator/(complex64_t a, complex64_t b) { return a /= b; }
constexpr bool operator==(complex64_t a, complex64_t b) { return a.re == b.re && a.im == b.im; }
constexpr bool operator!=(complex64_t a, complex64_t b) { return !(a == b); }
constexpr float real(complex64_t a) { return a.re; }
constexpr float imag(complex64_t a) { return a.im; }
constexpr complex64_t conj(complex64_t a) { return {a.re, -a.im}; }
inline float abs(complex64_t a) { return ::hypotf(a.re, a.im); }
using ::abs;

// --- limits ---------------------------------------------------------------------------------------

template <typename T>
struct Limits {  // integers
  static constexpr bool is_signed = T(-1) < T(0);
  static constexpr T max() {
    return is_signed ? T((uint64_t(1) << (8 * sizeof(T) - 1)) - 1) : T(~uint64_t(0));
  }
  static constexpr T min() { return is_signed ? T(-max() - 1) : T(0); }
  static constexpr T finite_max() { return max(); }
  static constexpr T finite_min() { return min(); }
};
template <>
struct Limits<bool> {
  static constexpr bool max() { return true; }
  static constexpr bool min() { return false; }
  static constexpr bool finite_max() { return true; }
  static constexpr bool finite_min() { return false; }
};
template <>
struct Limits<float> {
  static float max() { return __int_as_float(0x7f800000); }
  static float min() { return -max(); }
  static constexpr float finite_max() { return 3.40282346638528859812e38f; }
  static constexpr float finite_min() { return -finite_max(); }
};
template <>
struct Limits<double> {
  static double max() { return __longlong_as_double(0x7ff0000000000000ll); }
  static double min() { return -max(); }
  static constexpr double finite_max() { return 1.79769313486231570815e308; }
  static constexpr double finite_min() { return -finite_max(); }
};
template <>
struct Limits<__half> {
  static __half max() { return __ushort_as_half(0x7c00); }
  static __half min() { return __ushort_as_half(0xfc00); }
  static __half finite_max() { return __ushort_as_half(0x7bff); }
  static __half finite_min() { return __ushort_as_half(0xfbff); }
};
template <>
struct Limits<__nv_bfloat16> {
  static __nv_bfloat16 max() { return __ushort_as_bfloat16(0x7f80); }
  static __nv_bfloat16 min() { return __ushort_as_bfloat16(0xff80); }
  static __nv_bfloat16 finite_max() { return __ushort_as_bfloat16(0x7f7f); }
  static __nv_bfloat16 finite_min() { return __ushort_as_bfloat16(0xff7f); }
};

// --- vectors in memory ----------------------------------------------------------------------------

template <typename T, int N>
struct alignas(sizeof(T) * N) AlignedVector {
  T val[N];
  constexpr T& operator[](int i) { return val[i]; }
  constexpr const T& operator[](int i) const { return val[i]; }
};

template <typename T, int N>
inline bool is_aligned(const T* pointer) {
  return reinterpret_cast<uint64_t>(pointer) % (sizeof(T) * N) == 0;
}

// Elements [N * offset, N * offset + N) of `pointer`, as one access if the address allows it.
template <int N, typename T>
inline AlignedVector<T, N> load_vector(const T* pointer, uint32_t offset) {
  const T* from = pointer + uint64_t(offset) * N;
  if (is_aligned<T, N>(from)) {
    return *reinterpret_cast<const AlignedVector<T, N>*>(from);
  }
  AlignedVector<T, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = from[i];
  return out;
}

// The same; elements from `size` on are `fallback`.
template <int N, typename T, typename S>
inline AlignedVector<T, N> load_vector(const T* pointer, uint32_t offset, S size, T fallback) {
  if (uint64_t(offset) * N + N <= uint64_t(size)) return load_vector<N>(pointer, offset);
  AlignedVector<T, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    uint64_t at = uint64_t(offset) * N + i;
    out[i] = at < uint64_t(size) ? pointer[at] : fallback;
  }
  return out;
}

template <int N, typename T>
inline void store_vector(T* pointer, uint32_t offset, const AlignedVector<T, N>& vector) {
  T* to = pointer + uint64_t(offset) * N;
  if (is_aligned<T, N>(to)) {
    *reinterpret_cast<AlignedVector<T, N>*>(to) = vector;
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = vector[i];
}

// The same; elements from `size` on are not written.
template <int N, typename T, typename S>
inline void store_vector(T* pointer, uint32_t offset, const AlignedVector<T, N>& vector, S size) {
  if (uint64_t(offset) * N + N <= uint64_t(size)) return store_vector<N>(pointer, offset, vector);
  for (int i = 0; i < N && uint64_t(offset) * N + i < uint64_t(size); ++i) {
    pointer[uint64_t(offset) * N + i] = vector[i];
  }
}

}  // namespace mlx::core::cu

#include <kd_atomic.h>

namespace mlx::core::cu {

// Atomic updates of memory of any element type, relaxed, at GPU scope.
template <typename T>
inline void atomic_add(T* out, T val) {
  kd::atomic_update(out, [=](T old) { return T(old + val); });
}
inline void atomic_add(float* out, float val) { ::atomicAdd(out, val); }
inline void atomic_add(double* out, double val) { ::atomicAdd(out, val); }
inline void atomic_add(__half* out, __half val) { ::atomicAdd(out, val); }
inline void atomic_add(__nv_bfloat16* out, __nv_bfloat16 val) { ::atomicAdd(out, val); }
inline void atomic_add(int* out, int val) { ::atomicAdd(out, val); }
inline void atomic_add(uint32_t* out, uint32_t val) { ::atomicAdd(out, val); }
inline void atomic_add(uint64_t* out, uint64_t val) { ::atomicAdd(out, val); }
inline void atomic_add(int64_t* out, int64_t val) {
  ::atomicAdd(reinterpret_cast<uint64_t*>(out), uint64_t(val));
}
inline void atomic_add(complex64_t* out, complex64_t val) {  // the parts are added one after the other
  ::atomicAdd(&out->re, val.re);
  ::atomicAdd(&out->im, val.im);
}

template <typename T>
inline void atomic_prod(T* out, T val) {
  kd::atomic_update(out, [=](T old) { return T(old * val); });
}
template <typename T>
inline void atomic_max(T* out, T val) {
  kd::atomic_update(out, [=](T old) { return old < val ? val : old; });
}
template <typename T>
inline void atomic_min(T* out, T val) {
  kd::atomic_update(out, [=](T old) { return val < old ? val : old; });
}
inline void atomic_max(int* out, int val) { ::atomicMax(out, val); }
inline void atomic_max(uint32_t* out, uint32_t val) { ::atomicMax(out, val); }
inline void atomic_min(int* out, int val) { ::atomicMin(out, val); }
inline void atomic_min(uint32_t* out, uint32_t val) { ::atomicMin(out, val); }
template <typename T>
inline void atomic_and(T* out, T val) {
  kd::atomic_update(out, [=](T old) { return T(old & val); });
}
template <typename T>
inline void atomic_or(T* out, T val) {
  kd::atomic_update(out, [=](T old) { return T(old | val); });
}

}  // namespace mlx::core::cu
