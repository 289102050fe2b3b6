"""erfinv: x times a polynomial in w = -log(1 - x^2), or in sqrt(w) near the ends."""

from __future__ import annotations

from dataclasses import dataclass

from ..value import V
from .constants import INFINITY, NAN
from .double_word import sum_ordered
from .logarithm import split, sum_of_logs
from .registry import FUNCTIONS
from .text import FunctionWriter


@dataclass(frozen=True)
class Piece:
    """erfinv(x)/x as a polynomial in w - center, or sqrt(w) - center, for w up to `end`.

    The constant term is in two parts: rounding it would cost more than all other terms.
    """

    in_root: bool
    end: float
    center: float
    constant: tuple[float, float]
    others: tuple[float, ...]


# For (float32, float64): to 2^-27.1 and about 2^-52.2.
PIECES = (
    (
        Piece(
            False,
            0.75,
            0.0,
            (0.8862269520759583, -2.6623199644859596e-08),
            (
                0.23201365768909454,
                0.011549464426934719,
                -0.0023355823941528797,
                -0.00012758407683577389,
                4.7527708375127986e-05,
            ),
        ),
        Piece(
            False,
            5.0,
            2.5,
            (1.5014092922210693, 5.8889721543664564e-08),
            (
                0.24664027988910675,
                -0.00417736591771245,
                -0.0012527314247563481,
                0.00021833140635862947,
                -4.968686880602036e-06,
                -3.459782419668045e-06,
                4.672327236221463e-07,
                2.3017470596187195e-08,
                -8.863204392639545e-09,
            ),
        ),
        Piece(
            True,
            INFINITY,
            3.0,
            (2.832976818084717, -1.9356445335461103e-08),
            (
                1.0016751289367676,
                0.009445649571716785,
                -0.007639842573553324,
                0.0056833066046237946,
                -0.0035856300964951515,
                0.001495585311204195,
                -7.821635517757386e-05,
                -0.0003184921224601567,
                0.00012953323312103748,
            ),
        ),
    ),
    (
        Piece(
            False,
            0.75,
            0.0,
            (0.886226925452758, -3.8332932499128993e-17),
            (
                0.23201366653465452,
                0.011549342038268294,
                -0.002335101641540803,
                -0.00012804329519312815,
                4.6611447598057534e-05,
                2.0199542652251856e-06,
                -1.0124468203676348e-06,
                -3.751343501012877e-08,
                2.3074632343729965e-08,
                5.447150146892705e-10,
                -4.607227485678749e-10,
            ),
        ),
        Piece(
            False,
            6.25,
            3.125,
            (1.6536545626831027, -2.3602490514133155e-17),
            (
                0.24015818242559017,
                -0.006033670871428283,
                -0.0007407025341711679,
                0.0001867342080268328,
                -1.3882523350492156e-05,
                -1.3654691878514418e-06,
                4.234787645610666e-07,
                -2.9070380887692977e-08,
                -4.112625728135058e-09,
                1.0512179850701907e-09,
                -5.4157065259267073e-11,
                -1.2976983852908565e-11,
                2.6341616310922166e-12,
                -8.113719188286017e-14,
                -4.0636241614767614e-14,
                6.587330767111998e-15,
                2.864005880416631e-17,
                -1.2923369936512652e-16,
                1.0796314613576481e-17,
                1.0997007338296588e-18,
                -1.612264157953878e-19,
            ),
        ),
        Piece(
            True,
            16.0,
            3.25,
            (3.0838856104922208, -8.717498657592625e-17),
            (
                1.0052589676941563,
                0.0053709145535530915,
                -0.0037512085073481117,
                0.002491442097980478,
                -0.0016882755606490625,
                0.0009532893452881697,
                -0.00035503747889549823,
                2.4031416357829518e-05,
                6.828466237648061e-05,
                -4.731972197404432e-05,
                1.2475770748884788e-05,
                2.9276680600847835e-06,
                -4.014478059591304e-06,
                1.4958320968891261e-06,
                1.8612397837143476e-08,
                -2.6910776658265104e-07,
                9.06899010770367e-08,
            ),
        ),
        Piece(
            True,
            INFINITY,
            5.0,
            (4.849906401408584, -8.25220929251163e-17),
            (
                1.0103004648645273,
                -0.00013871931838039067,
                -0.00021503011903618733,
                7.59952780263626e-05,
                -1.9681781055643475e-05,
                4.526053987241134e-06,
                -9.92968278377291e-07,
                2.2904102286095798e-07,
                -6.77480281985133e-08,
                2.9066279605767722e-08,
                -1.4912274224146642e-08,
                7.716673235141252e-09,
                -3.821503738564108e-09,
                1.4432522890046087e-09,
                -2.4700625318989227e-10,
                -1.0546366757288429e-11,
            ),
        ),
    ),
)


@FUNCTIONS.define("erfinv")
def erfinv(b: FunctionWriter, x: V) -> V:
    """The y with erf(y) = x: infinite at -1 and 1, NaN beyond."""
    t = b.abs(x)
    parts = split(b, b.fma(-x, x, 1.0))
    w = -sum_of_logs(b, parts)
    root = b.sqrt(w)
    first, *others = b.pick(PIECES)
    result, end = _piece(b, x, w, first), first.end
    for piece in others:
        argument = root if piece.in_root else w
        result, end = w.lt(end).where(result, _piece(b, x, argument, piece)), piece.end
    limited = t.lt(1.0).where(result, t.equal(1.0).where(INFINITY, b.value(NAN)))
    return x.is_nan().where(x, b.copysign(limited, x))


def _piece(b: FunctionWriter, x: V, argument: V, piece: Piece) -> V:
    v = argument - piece.center
    constant, constant_low = piece.constant
    rest = b.fma(v, b.polynomial(v, piece.others), constant_low)
    q = sum_ordered(b, b.value(constant), rest)
    return b.fma(x, q.high, x * q.low)
