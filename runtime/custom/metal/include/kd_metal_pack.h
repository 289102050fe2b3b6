// Metal's <metal_pack>: vectors of floats in [0, 1] (unorm) or [-1, 1] (snorm) as the bytes or 16-bit parts of an
// integer, the first element in the lowest bits (Metal Shading Language Specification 6.14).
#pragma once

#include <kd_metal_math.h>

namespace metal {
namespace detail {

// Element `at` of `Bits` bits, of an integer that holds several.
template <int Bits, bool Signed>
inline float unpack_norm(uint packed, int at) {
  uint field = packed >> (at * Bits) & ((1u << Bits) - 1);
  if constexpr (Signed) {
    constexpr float scale = float((1 << (Bits - 1)) - 1);
    return ::fmaxf(float(int(field << (32 - Bits)) >> (32 - Bits)) / scale, -1.0f);
  } else {
    return float(field) / float((1u << Bits) - 1);
  }
}
template <int Bits, bool Signed>
inline uint pack_norm(float x, int at) {
  float low = Signed ? -1.0f : 0.0f, scale = float((1u << (Signed ? Bits - 1 : Bits)) - 1);
  int rounded = ::__float2int_rn(::fminf(::fmaxf(x, low), 1.0f) * scale);
  return (uint(rounded) & ((1u << Bits) - 1)) << (at * Bits);
}
template <int N, int Bits, bool Signed, typename T>
inline vec<T, N> unpack_norms(uint packed) {
  vec<T, N> out(T(0));
  for (int i = 0; i < N; ++i) out[i] = T(unpack_norm<Bits, Signed>(packed, i));
  return out;
}
template <int N, int Bits, bool Signed, typename T>
inline uint pack_norms(const vec<T, N>& v) {
  uint out = 0;
  for (int i = 0; i < N; ++i) out |= pack_norm<Bits, Signed>(float(v[i]), i);
  return out;
}

}  // namespace detail

#define KD_PACK(form, type, name, N, bits, is_signed)                      \
  inline type##N unpack_##form##_to_##name(uint packed) {                 \
    return detail::unpack_norms<N, bits, is_signed, type>(packed);        \
  }                                                                       \
  inline uint pack_##name##_to_##form(type##N v) {                        \
    return detail::pack_norms<N, bits, is_signed, type>(v);               \
  }
KD_PACK(unorm4x8, float, float, 4, 8, false)
KD_PACK(snorm4x8, float, float, 4, 8, true)
KD_PACK(unorm2x16, float, float, 2, 16, false)
KD_PACK(snorm2x16, float, float, 2, 16, true)
KD_PACK(unorm4x8, half, half, 4, 8, false)
KD_PACK(snorm4x8, half, half, 4, 8, true)
KD_PACK(unorm2x16, half, half, 2, 16, false)
KD_PACK(snorm2x16, half, half, 2, 16, true)
#undef KD_PACK

}  // namespace metal
