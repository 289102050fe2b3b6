// What the body of a `metal_kernel` finds: Metal's standard library on CUDA C++, the position of a thread under every
// name of the specification's table of compute attributes, and the geometry of arrays.
//
// The generated source puts header and body into a namespace within `metal`, so that Metal's names (float3, exp, half)
// come before CUDA's own.
#pragma once

#include <kd_metal_atomic.h>
#include <kd_metal_matrix.h>
#include <kd_metal_pack.h>
#include <kd_metal_traits.h>

// Limits (Metal Shading Language Specification 6.5.1 and <metal_limits>).
#define CHAR_BIT 8
#define SCHAR_MAX 127
#define SCHAR_MIN (-128)
#define CHAR_MAX SCHAR_MAX
#define CHAR_MIN SCHAR_MIN
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define SHRT_MIN (-32768)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define LONG_MAX 9223372036854775807l
#define LONG_MIN (-9223372036854775807l - 1)
#define ULONG_MAX 18446744073709551615ul
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define FLT_MAX 3.40282346638528859812e38f
#define FLT_MIN 1.17549435082228750797e-38f
#define FLT_EPSILON 1.1920928955078125e-7f
#define HALF_DIG 3
#define HALF_MANT_DIG 11
#define HALF_MAX half(65504.0f)
#define HALF_MIN half(6.103515625e-5f)
#define HALF_EPSILON half(9.765625e-4f)
#define MAXHALF HALF_MAX
#define M_E_H half(M_E_F)
#define M_LOG2E_H half(M_LOG2E_F)
#define M_LOG10E_H half(M_LOG10E_F)
#define M_LN2_H half(M_LN2_F)
#define M_LN10_H half(M_LN10_F)
#define M_PI_H half(M_PI_F)
#define M_PI_2_H half(M_PI_2_F)
#define M_PI_4_H half(M_PI_4_F)
#define M_1_PI_H half(M_1_PI_F)
#define M_2_PI_H half(M_2_PI_F)
#define M_2_SQRTPI_H half(M_2_SQRTPI_F)
#define M_SQRT2_H half(M_SQRT2_F)
#define M_SQRT1_2_H half(M_SQRT1_2_F)
#define M_E_BF bfloat(M_E_F)
#define M_LOG2E_BF bfloat(M_LOG2E_F)
#define M_LOG10E_BF bfloat(M_LOG10E_F)
#define M_LN2_BF bfloat(M_LN2_F)
#define M_LN10_BF bfloat(M_LN10_F)
#define M_PI_BF bfloat(M_PI_F)
#define M_PI_2_BF bfloat(M_PI_2_F)
#define M_PI_4_BF bfloat(M_PI_4_F)
#define M_1_PI_BF bfloat(M_1_PI_F)
#define M_2_PI_BF bfloat(M_2_PI_F)
#define M_2_SQRTPI_BF bfloat(M_2_SQRTPI_F)
#define M_SQRT2_BF bfloat(M_SQRT2_F)
#define M_SQRT1_2_BF bfloat(M_SQRT1_2_F)
#define MAXBFLOAT bfloat(3.3895313892515355e38f)
#define HUGE_VALH half(INFINITY)
#define HUGE_VALBF bfloat(INFINITY)

#define METAL_FUNC inline
#define MLX_MTL_CONST static constexpr const
#define MLX_MTL_LOOP_UNROLL _Pragma("unroll")

namespace metal {

// --- where a thread is (Metal Shading Language Specification, table 5.8) -------------------------------

namespace detail {

// The grid as it was asked for, in threads: the last threadgroup of an axis may be smaller than the others.
struct Place {
  uint3 grid;

  explicit Place(uint x, uint y, uint z) : grid(x, y, z) {}
  uint3 group() const { return uint3(blockIdx.x, blockIdx.y, blockIdx.z); }
  uint3 groups() const { return uint3(gridDim.x, gridDim.y, gridDim.z); }
  uint3 dispatched() const { return uint3(blockDim.x, blockDim.y, blockDim.z); }
  uint3 local() const { return uint3(threadIdx.x, threadIdx.y, threadIdx.z); }
  uint3 global() const { return group() * dispatched() + local(); }
  bool outside() const { return any(global() >= grid); }
  uint3 size() const { return metal::min(dispatched(), grid - group() * dispatched()); }
  uint3 origin() const { return uint3(0); }
  // Numbers within the launched block, which is what warps are made of, and within the threadgroup proper.
  uint index() const { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }
  uint index_in_threadgroup() const {
    uint3 s = size();
    return (threadIdx.z * s.y + threadIdx.y) * s.x + threadIdx.x;
  }
  // Groups of `width` lanes, of the launched block and of this threadgroup.
  uint dispatched_groups(uint width) const { return (blockDim.x * blockDim.y * blockDim.z + width - 1) / width; }
  uint groups_of(uint width) const {
    uint3 s = size();
    return (((s.z - 1) * blockDim.y + s.y - 1) * blockDim.x + s.x - 1) / width + 1;
  }
};

}  // namespace detail

// --- geometry of arrays -------------------------------------------------------------------------------

// A fixed array passed by value as a kernel parameter.
template <typename T>
struct PerAxis {
  T values[10];
};

// Where the elements of an input lie, relative to its first one; none if `low` is over `high`.
struct Bounds {
  int64_t low, high;
};

namespace detail {

// An input as the body indexes it: 0 outside. An index that went below zero and was kept as `uint`, as
// `uint loc = elem_to_loc(...)` does with negative strides, counts as the negative number.
template <typename T>
struct Reader {
  const T* array;
  const Bounds& bounds;

  template <typename I>
  T operator[](I index) const {
    int64_t at = int64_t(index);
    if constexpr (same<I, uint>) {
      if (bounds.low < 0 && at > bounds.high) at = int(index);
    }
    return at >= bounds.low && at <= bounds.high ? array[at] : T(0);
  }
};
template <typename T>
inline Reader<T> reader(const T* array, const Bounds& bounds) {
  return {array, bounds};
}

}  // namespace detail

// Ordered by the real parts, then by the imaginary ones, as MLX has it.
struct complex64_t {
  float real, imag;

  complex64_t() = default;
  template <typename T, typename = detail::enable_if_t<detail::is_scalar<T>>>
  constexpr complex64_t(T re) : real(float(re)), imag(0.0f) {}
  constexpr complex64_t(float re, float im) : real(re), imag(im) {}
  template <typename T, typename = detail::enable_if_t<detail::is_scalar<T>>>
  constexpr explicit operator T() const { return T(real); }
  constexpr complex64_t operator-() const { return {-real, -imag}; }
};
constexpr complex64_t operator+(complex64_t a, complex64_t b) { return {a.real + b.real, a.imag + b.imag}; }
constexpr complex64_t operator-(complex64_t a, complex64_t b) { return {a.real - b.real, a.imag - b.imag}; }
constexpr complex64_t operator*(complex64_t a, complex64_t b) {
  return {a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real};
}
constexpr complex64_t operator/(complex64_t a, complex64_t b) {
  float norm = b.real * b.real + b.imag * b.imag;
  return {(a.real * b.real + a.imag * b.imag) / norm, (a.imag * b.real - a.real * b.imag) / norm};
}
constexpr complex64_t& operator+=(complex64_t& a, complex64_t b) { return a = a + b; }
constexpr complex64_t& operator-=(complex64_t& a, complex64_t b) { return a = a - b; }
constexpr complex64_t& operator*=(complex64_t& a, complex64_t b) { return a = a * b; }
constexpr complex64_t& operator/=(complex64_t& a, complex64_t b) { return a = a / b; }
constexpr bool operator==(complex64_t a, complex64_t b) { return a.real == b.real && a.imag == b.imag; }
constexpr bool operator!=(complex64_t a, complex64_t b) { return !(a == b); }
constexpr bool operator<(complex64_t a, complex64_t b) {
  return a.real < b.real || (a.real == b.real && a.imag < b.imag);
}
constexpr bool operator>(complex64_t a, complex64_t b) { return b < a; }
constexpr bool operator<=(complex64_t a, complex64_t b) {
  return a.real < b.real || (a.real == b.real && a.imag <= b.imag);
}
constexpr bool operator>=(complex64_t a, complex64_t b) { return b <= a; }

// The offset, in elements, of row-major element `elem` of an array with these strides. Signed, so that negative
// strides work whatever the type of `elem` is.
template <typename I, typename = detail::enable_if_t<detail::is_integer<I>>>
constexpr int64_t elem_to_loc(I elem, const int* shape, const int64_t* strides, int ndim) {
  int64_t loc = 0;
  for (int axis = ndim - 1; axis >= 0 && elem > 0; --axis) {
    loc += int64_t(elem % I(shape[axis])) * strides[axis];
    elem /= I(shape[axis]);
  }
  return loc;
}

// The same for a thread's position: x counts the last axis, y the one before, z all others.
constexpr int64_t elem_to_loc(uint3 elem, const int* shape, const int64_t* strides, int ndim) {
  int64_t loc = ndim > 0 ? int64_t(elem.x) * strides[ndim - 1] : 0;
  if (ndim > 1) loc += int64_t(elem.y) * strides[ndim - 2];
  return ndim > 2 ? loc + elem_to_loc(elem.z, shape, strides, ndim - 2) : loc;
}

constexpr int64_t elem_to_loc_1(uint elem, int64_t stride) { return int64_t(elem) * stride; }
constexpr int64_t elem_to_loc_2(uint2 elem, const int64_t* strides) {
  return int64_t(elem.x) * strides[1] + int64_t(elem.y) * strides[0];
}
constexpr int64_t elem_to_loc_3(uint3 elem, const int64_t* strides) {
  return int64_t(elem.x) * strides[2] + int64_t(elem.y) * strides[1] + int64_t(elem.z) * strides[0];
}
constexpr vec<int64_t, 2> elem_to_loc_2_nd(
    uint3 elem, const int* shape, const int64_t* a_strides, const int64_t* b_strides, int ndim) {
  return {elem_to_loc(elem, shape, a_strides, ndim), elem_to_loc(elem, shape, b_strides, ndim)};
}
constexpr vec<int64_t, 3> elem_to_loc_3_nd(
    uint3 elem,
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

template <typename A, typename B>
constexpr auto ceildiv(A a, B b) {
  return (a + b - 1) / b;
}

template <typename T>
struct Limits {  // integers
  static constexpr T max = detail::greatest<T>;
  static constexpr T min = detail::lowest<T>;
  static constexpr T finite_max = max;
  static constexpr T finite_min = min;
};
template <>
struct Limits<float> {
  static constexpr float max = INFINITY;
  static constexpr float min = -INFINITY;
  static constexpr float finite_max = MAXFLOAT;
  static constexpr float finite_min = -MAXFLOAT;
};
template <>
struct Limits<half> {
  static constexpr half max = half(INFINITY);
  static constexpr half min = half(-INFINITY);
  static constexpr half finite_max = half(65504.0f);
  static constexpr half finite_min = half(-65504.0f);
};
template <>
struct Limits<bfloat> {
  static constexpr bfloat max = bfloat(INFINITY);
  static constexpr bfloat min = bfloat(-INFINITY);
  static constexpr bfloat finite_max = bfloat(3.3895313892515355e38f);
  static constexpr bfloat finite_min = bfloat(-3.3895313892515355e38f);
};
template <typename T>
struct numeric_limits {
  static constexpr bool is_integer = detail::is_integer<T>;
  static constexpr bool is_signed = !detail::is_integer<T> || detail::is_signed<T>;
  static constexpr T max() { return Limits<T>::finite_max; }
  static constexpr T lowest() { return Limits<T>::finite_min; }
  static constexpr T min() {
    if constexpr (detail::is_integer<T>) return Limits<T>::min;
    else return T(detail::same<T, half> ? 6.103515625e-5f : 1.17549435082228750797e-38f);
  }
  static constexpr T infinity() { return T(INFINITY); }
  static constexpr T quiet_NaN() { return T(NAN); }
  static constexpr T epsilon() {
    return T(detail::same<T, half> ? 9.765625e-4f : detail::same<T, bfloat> ? 7.8125e-3f : 1.1920928955078125e-7f);
  }
};

// --- the conditional operator ---------------------------------------------------------------------------

namespace detail {

template <typename A, typename B>
constexpr bool needs_meeting = !same<A, B> && (is_small<A> || is_small<B> || is_vector<A> || is_vector<B>);

}  // namespace detail

// One side of `c ? a : b` in the type that both sides meet in. half converts to float and float to half, which leaves
// C++ without an answer where Metal has one.
template <typename A, typename B, typename V>
constexpr decltype(auto) branch(V&& value) {
  using X = remove_cvref_t<A>;
  using Y = remove_cvref_t<B>;
  if constexpr (!detail::needs_meeting<X, Y>) {
    return V(value);
  } else if constexpr (detail::is_vector<X>) {
    return detail::vector_of<X>(value);
  } else if constexpr (detail::is_vector<Y>) {
    return detail::vector_of<Y>(value);
  } else {
    return detail::common<X, Y>(value);
  }
}

}  // namespace metal
