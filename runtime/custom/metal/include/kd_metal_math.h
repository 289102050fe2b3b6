// Metal's standard library of functions on numbers and vectors: common, integer, relational, mathematical, geometric
// (Metal Shading Language Specification, chapter 6), and the namespaces precise and fast.
#pragma once

#include <kd_metal_vec.h>

#define M_PI_F 3.141592653589793f
#define M_PI_2_F 1.5707963267948966f
#define M_PI_4_F 0.7853981633974483f
#define M_1_PI_F 0.3183098861837907f
#define M_2_PI_F 0.6366197723675814f
#define M_2_SQRTPI_F 1.1283791670955126f
#define M_E_F 2.718281828459045f
#define M_LOG2E_F 1.4426950408889634f
#define M_LOG10E_F 0.4342944819032518f
#define M_LN2_F 0.6931471805599453f
#define M_LN10_F 2.302585092994046f
#define M_SQRT2_F 1.4142135623730951f
#define M_SQRT1_2_F 0.7071067811865476f
#define MAXFLOAT 3.40282346638528859812e38f
#undef INFINITY
#undef NAN
#define INFINITY __builtin_bit_cast(float, 0x7f800000u)
#define HUGE_VALF INFINITY
#define NAN __builtin_bit_cast(float, 0x7fc00000u)

namespace metal {
namespace detail {

// What scalars meet in: as the operator + says, except that narrow integers of one type stay as they are.
template <typename A, typename B>
struct Common {
  using type = decltype(make<A>() + make<B>());
};
template <typename A>
struct Common<A, A> {
  using type = A;
};
template <typename A, typename B>
using common = typename Common<A, B>::type;

// What a function of floats gives for an argument: integers count as float.
template <typename A>
using Floating = typename choose<is_integer<A>, float, A>::type;

// f over the elements of up to three operands, of which any may be vectors; `Wrap` picks the type they are taken in.
template <template <typename> class Wrap, typename F, typename A>
constexpr auto map(F f, const A& a) {
  using T = Wrap<element_of<A>>;
  if constexpr (is_vector<A>) {
    using R = decltype(f(make<T>()));
    vec<R, size_of<A>> out(R(0));
    for (int i = 0; i < size_of<A>; ++i) out[i] = f(T(a[i]));
    return out;
  } else {
    return f(T(a));
  }
}
template <template <typename> class Wrap, typename F, typename A, typename B>
constexpr auto map(F f, const A& a, const B& b) {
  using C = typename choose<
      is_vector<A> == is_vector<B>, common<element_of<A>, element_of<B>>, joint_element<A, B>>::type;
  using T = Wrap<C>;
  if constexpr (is_vector<A> || is_vector<B>) {
    static_assert(joint<A, B>, "the operands are vectors of different lengths");
    using R = decltype(f(make<T>(), make<T>()));
    vec<R, joint_size<A, B>> out(R(0));
    for (int i = 0; i < joint_size<A, B>; ++i) out[i] = f(T(element(a, i)), T(element(b, i)));
    return out;
  } else {
    return f(T(a), T(b));
  }
}
template <template <typename> class Wrap, typename F, typename A, typename B, typename C>
constexpr auto map(F f, const A& a, const B& b, const C& c) {
  using V = typename choose<is_vector<A>, A, typename choose<is_vector<B>, B, C>::type>::type;
  using Scalar = common<common<element_of<A>, element_of<B>>, element_of<C>>;
  using T = Wrap<typename choose<is_vector<V>, element_of<V>, Scalar>::type>;
  if constexpr (is_vector<V>) {
    using R = decltype(f(make<T>(), make<T>(), make<T>()));
    vec<R, size_of<V>> out(R(0));
    for (int i = 0; i < size_of<V>; ++i)
      out[i] = f(T(element(a, i)), T(element(b, i)), T(element(c, i)));
    return out;
  } else {
    return f(T(a), T(b), T(c));
  }
}

template <typename T>
using Same = T;

}  // namespace detail

#define KD_IF_NUMBER(A) \
  typename = detail::enable_if_t<detail::is_scalar<A> || detail::is_vector<A>>

// A function of floats: `call` sees float arguments x, y, z; the result is rounded to the operands' type.
#define KD_FLOAT1(name, call)                                                       \
  template <typename A, KD_IF_NUMBER(A)>                                            \
  inline auto name(const A& a) {                                                    \
    return detail::map<detail::Floating>(                                           \
        [](auto x0) {                                                               \
          float x = float(x0);                                                      \
          return decltype(x0)(call);                                                \
        },                                                                          \
        a);                                                                         \
  }
#define KD_FLOAT2(name, call)                                                       \
  template <typename A, typename B, KD_IF_NUMBER(A)>                                \
  inline auto name(const A& a, const B& b) {                                        \
    return detail::map<detail::Floating>(                                           \
        [](auto x0, auto y0) {                                                      \
          float x = float(x0), y = float(y0);                                       \
          return decltype(x0)(call);                                                \
        },                                                                          \
        a, b);                                                                      \
  }
// A function of any numbers: `call` sees x, y, z in the type T that the operands meet in.
#define KD_ANY1(name, call)                                                         \
  template <typename A, KD_IF_NUMBER(A)>                                            \
  constexpr auto name(const A& a) {                                                 \
    return detail::map<detail::Same>(                                               \
        [](auto x) {                                                                \
          using T = decltype(x);                                                    \
          return T(call);                                                           \
        },                                                                          \
        a);                                                                         \
  }
#define KD_ANY2(name, call)                                                         \
  template <typename A, typename B, KD_IF_NUMBER(A)>                                \
  constexpr auto name(const A& a, const B& b) {                                     \
    return detail::map<detail::Same>(                                               \
        [](auto x, auto y) {                                                        \
          using T = decltype(x);                                                    \
          return T(call);                                                           \
        },                                                                          \
        a, b);                                                                      \
  }
#define KD_ANY3(name, call)                                                         \
  template <typename A, typename B, typename C, KD_IF_NUMBER(A)>                    \
  constexpr auto name(const A& a, const B& b, const C& c) {                         \
    return detail::map<detail::Same>(                                               \
        [](auto x, auto y, auto z) {                                                \
          using T = decltype(x);                                                    \
          return T(call);                                                           \
        },                                                                          \
        a, b, c);                                                                   \
  }
#define KD_TEST1(name, call)                                                        \
  template <typename A, KD_IF_NUMBER(A)>                                            \
  inline auto name(const A& a) {                                                    \
    return detail::map<detail::Floating>(                                           \
        [](auto x0) -> bool {                                                       \
          float x = float(x0);                                                      \
          return call;                                                              \
        },                                                                          \
        a);                                                                         \
  }

// --- mathematical functions (6.5) ---------------------------------------------------------------------

KD_FLOAT1(acos, ::acosf(x))
KD_FLOAT1(acosh, ::acoshf(x))
KD_FLOAT1(asin, ::asinf(x))
KD_FLOAT1(asinh, ::asinhf(x))
KD_FLOAT1(atan, ::atanf(x))
KD_FLOAT1(atanh, ::atanhf(x))
KD_FLOAT1(ceil, ::ceilf(x))
KD_FLOAT1(cos, ::cosf(x))
KD_FLOAT1(cosh, ::coshf(x))
KD_FLOAT1(cospi, ::cospif(x))
KD_FLOAT1(erf, ::erff(x))
KD_FLOAT1(erfinv, ::erfinvf(x))
KD_FLOAT1(exp, ::expf(x))
KD_FLOAT1(exp2, ::exp2f(x))
KD_FLOAT1(exp10, ::exp10f(x))
KD_FLOAT1(expm1, ::expm1f(x))
KD_FLOAT1(fabs, ::fabsf(x))
KD_FLOAT1(floor, ::floorf(x))
KD_FLOAT1(fract, ::fminf(x - ::floorf(x), 0.999999940395355224609375f))
KD_FLOAT1(log, ::logf(x))
KD_FLOAT1(log1p, ::log1pf(x))
KD_FLOAT1(log2, ::log2f(x))
KD_FLOAT1(log10, ::log10f(x))
KD_FLOAT1(rint, ::rintf(x))
KD_FLOAT1(round, ::roundf(x))
KD_FLOAT1(rsqrt, ::rsqrtf(x))
KD_FLOAT1(sin, ::sinf(x))
KD_FLOAT1(sinh, ::sinhf(x))
KD_FLOAT1(sinpi, ::sinpif(x))
KD_FLOAT1(sqrt, ::sqrtf(x))
KD_FLOAT1(tan, ::tanf(x))
KD_FLOAT1(tanh, ::tanhf(x))
KD_FLOAT1(tanpi, ::sinpif(x) / ::cospif(x))
KD_FLOAT1(trunc, ::truncf(x))
KD_FLOAT2(atan2, ::atan2f(x, y))
KD_FLOAT2(copysign, ::copysignf(x, y))
KD_FLOAT2(divide, x / y)
KD_FLOAT2(fdim, ::fdimf(x, y))
KD_FLOAT2(fmax, ::fmaxf(x, y))
KD_FLOAT2(fmin, ::fminf(x, y))
KD_FLOAT2(fmod, ::fmodf(x, y))
KD_FLOAT2(nextafter, ::nextafterf(x, y))
KD_FLOAT2(pow, ::powf(x, y))
KD_FLOAT2(powr, ::powf(x, y))

// One rounding, also for 16-bit floats: their product is exact in double, and so is the sum to within a tie of half.
template <typename A, typename B, typename C, KD_IF_NUMBER(A)>
inline auto fma(const A& a, const B& b, const C& c) {
  return detail::map<detail::Floating>(
      [](auto x, auto y, auto z) {
        if constexpr (detail::is_small<decltype(x)>) {
          return decltype(x)(float(::fma(double(float(x)), double(float(y)), double(float(z)))));
        } else {
          return ::fmaf(x, y, z);
        }
      },
      a, b, c);
}

template <typename A, typename R>
inline auto sincos(const A& a, R& cosine) {
  cosine = cos(a);
  return sin(a);
}
template <typename A, typename R>
inline auto modf(const A& a, R& whole) {
  whole = trunc(a);
  return copysign(a - trunc(a), a);
}
template <typename A, typename R>
inline auto frexp(const A& a, R& exponent) {
  if constexpr (detail::is_vector<A>) {
    detail::vector_of<A> out(0);
    for (int i = 0; i < detail::size_of<A>; ++i) out[i] = frexp(a[i], exponent[i]);
    return out;
  } else {
    int e;
    detail::Floating<A> out(::frexpf(float(a), &e));
    exponent = e;
    return out;
  }
}
template <typename A, typename K>
inline auto ldexp(const A& a, const K& k) {
  if constexpr (detail::is_vector<A>) {
    detail::vector_of<A> out(0);
    for (int i = 0; i < detail::size_of<A>; ++i) out[i] = ldexp(a[i], detail::element(k, i));
    return out;
  } else {
    return detail::Floating<A>(::ldexpf(float(a), int(k)));
  }
}
template <typename A>
inline auto ilogb(const A& a) {
  return detail::map<detail::Floating>([](auto x) { return ::ilogbf(float(x)); }, a);
}

// --- common functions (6.2, 6.3) ----------------------------------------------------------------------

namespace detail {
template <typename T>
constexpr T least(T x, T y) {
  if constexpr (is_floating<T>) return T(::fminf(float(x), float(y)));
  else return y < x ? y : x;
}
template <typename T>
constexpr T most(T x, T y) {
  if constexpr (is_floating<T>) return T(::fmaxf(float(x), float(y)));
  else return x < y ? y : x;
}
template <typename T>
using Unsigned = typename choose<
    sizeof(T) == 1, uchar,
    typename choose<sizeof(T) == 2, ushort, typename choose<sizeof(T) == 4, uint, ulong>::type>::type>::type;
}  // namespace detail

KD_ANY2(min, detail::least(x, y))
KD_ANY2(max, detail::most(x, y))
KD_ANY3(clamp, detail::least(detail::most(x, y), z))
KD_ANY3(min3, detail::least(detail::least(x, y), z))
KD_ANY3(max3, detail::most(detail::most(x, y), z))
KD_ANY3(median3, detail::most(detail::least(x, y), detail::least(detail::most(x, y), z)))
KD_ANY3(fmin3, detail::least(detail::least(x, y), z))
KD_ANY3(fmax3, detail::most(detail::most(x, y), z))
KD_ANY3(fmedian3, detail::most(detail::least(x, y), detail::least(detail::most(x, y), z)))
KD_ANY3(mix, x + (y - x) * z)
KD_FLOAT1(saturate, ::fminf(::fmaxf(x, 0.0f), 1.0f))
KD_FLOAT1(sign, x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? x : 0.0f)
KD_FLOAT2(step, y < x ? 0.0f : 1.0f)
template <typename A, typename B, typename C>
inline auto smoothstep(const A& low, const B& high, const C& at) {
  auto t = saturate((at - low) / (high - low));
  return t * t * (3 - 2 * t);
}

template <typename A, KD_IF_NUMBER(A)>
constexpr auto abs(const A& a) {
  return detail::map<detail::Same>(
      [](auto x) {
        using T = decltype(x);
        if constexpr (detail::is_floating<T>) return T(::fabsf(float(x)));
        else return T(x < T(0) ? -x : x);
      },
      a);
}

// --- integer functions (6.4) --------------------------------------------------------------------------

KD_ANY2(absdiff, x < y ? detail::Unsigned<T>(y) - detail::Unsigned<T>(x) : detail::Unsigned<T>(x) - detail::Unsigned<T>(y))
KD_ANY2(hadd, (x & y) + ((x ^ y) >> 1))
KD_ANY2(rhadd, (x | y) - ((x ^ y) >> 1))
KD_ANY2(mul24, x * y)
KD_ANY3(mad24, x * y + z)
KD_ANY1(popcount, ::__popcll(detail::Unsigned<T>(x)))
KD_ANY1(clz, ::__clzll(detail::Unsigned<T>(x)) - (64 - 8 * int(sizeof(T))))
KD_ANY1(ctz, x == 0 ? 8 * int(sizeof(T)) : ::__ffsll(detail::Unsigned<T>(x)) - 1)
KD_ANY1(reverse_bits, ::__brevll(detail::Unsigned<T>(x)) >> (64 - 8 * sizeof(T)))

namespace detail {
template <typename T>
constexpr bool is_signed = T(-1) < T(0);
template <typename T>
constexpr T greatest = is_signed<T> ? T(Unsigned<T>(~Unsigned<T>(0)) >> 1) : T(~Unsigned<T>(0));
template <typename T>
constexpr T lowest = is_signed<T> ? T(-greatest<T> - 1) : T(0);

// In a namespace of their own: vectors have bases in `detail`, where a call by a user would find these first.
namespace integer {
template <typename T>
constexpr T rotate(T value, T by) {
  using U = Unsigned<T>;
  constexpr int bits = 8 * sizeof(T);
  int n = int(U(by) % bits);
  return n == 0 ? value : T(U(U(value) << n) | U(U(value) >> (bits - n)));
}
template <typename T>
constexpr T addsat(T x, T y) {
  if (y > T(0) && x > T(greatest<T> - y)) return greatest<T>;
  if (y < T(0) && x < T(lowest<T> - y)) return lowest<T>;
  return T(x + y);
}
template <typename T>
constexpr T subsat(T x, T y) {
  if (y > T(0) && x < T(lowest<T> + y)) return lowest<T>;
  if (y < T(0) && x > T(greatest<T> + y)) return greatest<T>;
  return T(x - y);
}
template <typename T>
constexpr T mulhi(T x, T y) {
  if constexpr (sizeof(T) < 8) {
    using Wide = typename choose<is_signed<T>, long, ulong>::type;
    return T(Wide(x) * Wide(y) >> (8 * sizeof(T)));
  } else if constexpr (is_signed<T>) {
    return T(::__mul64hi(x, y));
  } else {
    return T(::__umul64hi(x, y));
  }
}
}  // namespace integer
}  // namespace detail

KD_ANY2(rotate, detail::integer::rotate(x, y))
KD_ANY2(addsat, detail::integer::addsat(x, y))
KD_ANY2(subsat, detail::integer::subsat(x, y))
KD_ANY2(mulhi, detail::integer::mulhi(x, y))
KD_ANY3(madhi, detail::integer::mulhi(x, y) + z)
KD_ANY3(madsat, detail::integer::mulhi(x, y) == (T(x * y) < T(0) ? T(-1) : T(0)) ? detail::integer::addsat(T(x * y), z) : (x < T(0)) == (y < T(0)) ? detail::greatest<T> : detail::lowest<T>)

template <typename A>
constexpr auto extract_bits(const A& a, uint offset, uint bits) {
  return detail::map<detail::Same>(
      [=](auto x) {
        using T = decltype(x);
        constexpr uint width = 8 * sizeof(T);
        if (bits == 0) return T(0);
        return T(T(x << (width - bits - offset)) >> (width - bits));
      },
      a);
}
template <typename A, typename B>
constexpr auto insert_bits(const A& base, const B& insert, uint offset, uint bits) {
  return detail::map<detail::Same>(
      [=](auto x, auto y) {
        using T = decltype(x);
        using U = detail::Unsigned<T>;
        U mask = bits >= 8 * sizeof(T) ? U(~U(0)) : U((U(1) << bits) - 1);
        return T((U(x) & U(~U(mask << offset))) | U((U(y) & mask) << offset));
      },
      base, insert);
}

// --- relational functions (6.6) -----------------------------------------------------------------------

KD_TEST1(isnan, x != x)
KD_TEST1(isinf, ::fabsf(x) == INFINITY)
KD_TEST1(isfinite, ::fabsf(x) < INFINITY)
template <typename A, KD_IF_NUMBER(A)>
inline auto isnormal(const A& a) {
  return detail::map<detail::Floating>(
      [](auto x) -> bool {
        float size = ::fabsf(float(x));
        float least = detail::same<decltype(x), half> ? 6.103515625e-5f : 1.17549435082228750797e-38f;
        return size >= least && size < INFINITY;
      },
      a);
}
KD_TEST1(signbit, kd::bit_cast<uint>(x) >> 31 != 0)
template <typename A, typename B>
inline auto isordered(const A& a, const B& b) {
  return detail::map<detail::Same>([](auto x, auto y) -> bool { return x == x && y == y; }, a, b);
}
template <typename A, typename B>
inline auto isunordered(const A& a, const B& b) {
  return detail::map<detail::Same>([](auto x, auto y) -> bool { return x != x || y != y; }, a, b);
}
template <typename A>
constexpr bool all(const A& a) {
  bool result = true;
  for (int i = 0; i < detail::size_of<A>; ++i) result = result && bool(detail::element(a, i));
  return result;
}
template <typename A>
constexpr bool any(const A& a) {
  bool result = false;
  for (int i = 0; i < detail::size_of<A>; ++i) result = result || bool(detail::element(a, i));
  return result;
}
// b where the condition holds, else a.
template <typename A, typename B, typename C>
constexpr auto select(const A& a, const B& b, const C& condition) {
  if constexpr (detail::is_vector<C>) {
    using T = detail::joint_element<A, B>;
    vec<T, detail::size_of<C>> out(T(0));
    for (int i = 0; i < detail::size_of<C>; ++i)
      out[i] = condition[i] ? T(detail::element(b, i)) : T(detail::element(a, i));
    return out;
  } else if constexpr (detail::is_vector<A> || detail::is_vector<B>) {
    using V = detail::vector_of<typename detail::choose<detail::is_vector<A>, A, B>::type>;
    return condition ? V(b) : V(a);
  } else {
    using T = detail::common<A, B>;
    return condition ? T(b) : T(a);
  }
}

// --- geometric functions (6.9) ------------------------------------------------------------------------

template <typename A, typename B>
inline auto dot(const A& a, const B& b) {
  using T = detail::element_of<A>;
  T sum = T(0);
  for (int i = 0; i < detail::size_of<A>; ++i) sum = T(sum + a[i] * b[i]);
  return sum;
}
template <typename A>
inline auto length_squared(const A& a) {
  return dot(a, a);
}
template <typename A>
inline auto length(const A& a) {
  return sqrt(dot(a, a));
}
template <typename A, typename B>
inline auto distance_squared(const A& a, const B& b) {
  return length_squared(a - b);
}
template <typename A, typename B>
inline auto distance(const A& a, const B& b) {
  return length(a - b);
}
template <typename A>
inline auto normalize(const A& a) {
  return a * rsqrt(dot(a, a));
}
template <typename A, typename B>
inline auto cross(const A& a, const B& b) {
  using T = detail::element_of<A>;
  return vec<T, 3>(
      T(a[1] * b[2] - a[2] * b[1]), T(a[2] * b[0] - a[0] * b[2]), T(a[0] * b[1] - a[1] * b[0]));
}
template <typename A, typename B, typename C>
inline auto faceforward(const A& normal, const B& incident, const C& reference) {
  detail::vector_of<A> n(normal);
  return dot(reference, incident) < 0 ? n : -n;
}
template <typename A, typename B>
inline auto reflect(const A& incident, const B& normal) {
  return incident - normal * (dot(normal, incident) * 2);
}
template <typename A, typename B, typename E>
inline auto refract(const A& incident, const B& normal, const E& eta) {
  using T = detail::element_of<A>;
  T cosine = dot(normal, incident), ratio = T(eta);
  T k = T(1 - ratio * ratio * (1 - cosine * cosine));
  using V = detail::vector_of<A>;
  return k < 0 ? V(T(0)) : V(incident * ratio - normal * T(ratio * cosine + sqrt(k)));
}

// --- bits -----------------------------------------------------------------------------------------------

template <typename To, typename From>
inline To as_type(const From& from) {
  if constexpr (detail::is_vector<From>) {
    detail::vector_of<From> value(from);
    return kd::bit_cast<To>(value);
  } else {
    return kd::bit_cast<To>(from);
  }
}

// --- precise and fast (6.5) ---------------------------------------------------------------------------

#define KD_EACH_PLAIN(M)                                                                        \
  M(acos) M(acosh) M(asin) M(asinh) M(atan) M(atan2) M(atanh) M(ceil) M(copysign) M(cosh) M(cospi) \
  M(erf) M(erfinv) M(expm1) M(fabs) M(abs) M(fdim) M(floor) M(fma) M(fmax) M(fmin) M(max) M(min)   \
  M(fmax3) M(fmin3) M(fmedian3) M(max3) M(min3) M(median3) M(fmod) M(fract) M(frexp) M(ilogb)     \
  M(ldexp) M(log1p) M(modf) M(nextafter) M(rint) M(round) M(sinh) M(sinpi) M(tanh) M(tanpi)     \
  M(trunc) M(clamp) M(mix) M(saturate) M(sign) M(smoothstep) M(step) M(length) M(distance)       \
  M(isnan) M(isinf) M(isfinite)
#define KD_EACH_FAST(M)                                                                          \
  M(cos) M(divide) M(exp) M(exp10) M(exp2) M(log) M(log10) M(log2) M(normalize) M(pow) M(powr) M(rsqrt) \
  M(sin) M(sincos) M(sqrt) M(tan)
#define KD_USE(name) using metal::name;

namespace precise {
KD_EACH_PLAIN(KD_USE)
KD_EACH_FAST(KD_USE)
}  // namespace precise

namespace detail {
inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
}  // namespace detail

// Approximations with the GPU's own instructions.
namespace fast {
KD_EACH_PLAIN(KD_USE)
KD_FLOAT1(cos, ::__cosf(x))
KD_FLOAT1(sin, ::__sinf(x))
KD_FLOAT1(tan, ::__tanf(x))
KD_FLOAT1(exp, ::__expf(x))
KD_FLOAT1(exp2, detail::fast_exp2(x))
KD_FLOAT1(exp10, ::__exp10f(x))
KD_FLOAT1(log, ::__logf(x))
KD_FLOAT1(log2, ::__log2f(x))
KD_FLOAT1(log10, ::__log10f(x))
KD_FLOAT1(sqrt, ::__fsqrt_rn(x))
KD_FLOAT1(rsqrt, ::rsqrtf(x))
KD_FLOAT2(divide, ::__fdividef(x, y))
KD_FLOAT2(pow, ::__powf(x, y))
KD_FLOAT2(powr, ::__powf(x, y))
template <typename A, typename R>
inline auto sincos(const A& a, R& cosine) {
  cosine = fast::cos(a);
  return fast::sin(a);
}
template <typename A>
inline auto normalize(const A& a) {
  return metal::normalize(a);
}
}  // namespace fast

#undef KD_EACH_PLAIN
#undef KD_EACH_FAST
#undef KD_USE
#undef KD_FLOAT1
#undef KD_FLOAT2
#undef KD_ANY1
#undef KD_ANY2
#undef KD_ANY3
#undef KD_TEST1

}  // namespace metal
