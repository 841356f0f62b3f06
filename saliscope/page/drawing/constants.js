// Colors and drawing constants of the library, from explainers/maps/color_maps.py and overlays.py.
// Generated: run `python -m tests.project.test_script_constants` instead of editing this file.

/** The 256 colors of each color map as RGB bytes in base64. */
export const COLOR_MAPS = {
  magma:
    "AAAEAQAFAQEGAQEIAgEJAgILAgINAwMPAwMSBAQUBQQWBgUYBgUaBwYcCAceCQcgCggiCwkkDAkmDQopDgsrEAstEQwvEg0xEw00FA42FQ44Fg87" +
    "GA89GRA/GhBCHBBEHRFHHhFJIBFLIRFOIhFQJBJTJRJVJxJYKRFaKhFcLBFfLRFhLxFjMRFlMxBnNBBpNhBrOBBsOQ9uOw9wPQ9xPw9yQA90Qg91" +
    "RA92RRB3RxB4SRB4ShB5TBF6ThF7TxJ7URJ8UhN8VBN9VhR9VxV+WRV+WhZ+XBZ/XRd/Xxh/YBiAYhmAZBqAZRqAZxuAaByBahyBax2BbR2Bbh6B" +
    "cB+Bch+BcyCBdSGBdiGBeCKBeSKCeyOCfCOCfiSCgCWCgSWBgyaBhCaBhieBiCeBiSiBiymBjCmBjiqBkCqBkSuBkyuAlCyAliyAmC2AmS2Amy5/" +
    "nC5/ni9/oC9/oTB+ozB+pTF+pjF9qDJ9qjN9qzN8rTR8rjR7sDV7sjV7szZ6tTZ6tzd5uDd5ujh4vDl4vTl3vzp3wDp2wjt1xDx1xTx0xz1zyD5z" +
    "yj5yzD9xzUBxz0Bw0EFv0kJv00Nu1URt1kVs2EVs2UZr20dq3Ehp3klo30po4Exn4k1m405l5E9k5VBk51Jj6FNi6VRi6lZh61dg7Fhg7Vpf7lte" +
    "711e8F9e8WBd8mJd8mRc82Vc9Gdc9Glc9Wtc9mxc9m5c93Bc93Jc+HRc+HZc+Xhd+Xld+Xtd+n1e+n9e+oFf+4Nf+4Vg+4dh/Ilh/Ipi/Ixj/I5k" +
    "/JBl/ZJm/ZRn/ZZo/Zhp/Zpq/Ztr/p1s/p9t/qFu/qNv/qVx/qdy/qlz/qp0/qx2/q53/rB4/rJ6/rR7/rZ8/rd+/rl//ruB/r2C/r+E/sGF/sKH" +
    "/sSI/saK/siM/sqN/syP/s2Q/s+S/tGU/tOV/tWX/teZ/tia/dqc/dye/d6g/eCh/eKj/eOl/eWn/eep/emq/eus/Oyu/O6w/PCy/PK0/PS2/Pa4" +
    "/Pe5/Pm7/Pu9/P2/",
  viridis:
    "RAFURAJWRQRXRQVZRgdaRghcRgpdRgteRw1gRw5hRxBjRxFkRxNlSBRnSBZoSBdpSBhqSBpsSBttSBxuSB1vSB9wSCBxSCFzSCN0SCR1SCV2SCZ3" +
    "SCh4SCl5Ryp6Ryx6Ry17Ry58Ry99RjB+RjJ+RjN/RjSARTWBRTeBRTiCRDmDRDqDRDuEQz2EQz6FQj+FQkCGQkGGQUKHQUSHQEWIQEaIP0eIP0iJ" +
    "PkmJPkqJPkyKPU2KPU6KPE+KPFCLO1GLO1KLOlOLOlSMOVWMOVaMOFiMOFmMN1qMN1uNNlyNNl2NNV6NNV+NNGCNNGGNM2KNM2ONMmSOMmWOMWaO" +
    "MWeOMWiOMGmOMGqOL2uOL2yOLm2OLm6OLm+OLXCOLXGOLHGOLHKOLHOOK3SOK3WOKnaOKneOKniOKXmOKXqOKXuOKHyOKH2OJ36OJ3+OJ4COJoGO" +
    "JoKOJoKOJYOOJYSOJYWOJIaOJIeOI4iOI4mOI4qNIouNIoyNIo2NIY6NIY+NIZCNIZGMIJKMIJKMIJOMH5SMH5WLH5aLH5eLH5iLH5mKH5qKHpuK" +
    "HpyJHp2JH56JH5+IH6CIH6GIH6GHH6KHIKOGIKSGIaWFIaaFIqeFIqiEI6mDJKqDJauCJayCJq2BJ62BKK6AKa9/KrB/LLF+LbJ9LrN8L7R8MbV7" +
    "MrZ6NLZ5Nbd5N7h4OLl3Orp2O7t1Pbx0P7xzQL1yQr5xRL9wRsBvSMFuSsFtTMJsTsNrUMRqUsVpVMVoVsZnWMdlWshkXMhjXsliYMpgY8tfZcte" +
    "Z8xcac1bbM1abs5YcM9Xc9BWddBUd9FTetFRfNJQf9NOgdNNhNRLhtVJidVIi9ZGjtZFkNdDk9dBldhAmNg+m9k8ndk7oNo5oto3pds2qNs0qtwy" +
    "rdwwsN0vst0ttd4ruN4put4ovd8mwN8lwt8jxeAhyOAgyuEfzeEd0OEc0uIb1eIa2OIZ2uMZ3eMY3+MY4uQY5eQZ5+QZ6uUa7OUb7+Uc8eUd9OYe" +
    "9uYg+OYh++cj/ecl",
  signed:
    "KHrrKHrrKnvrK3zrLX3rL37sMH/sMoDsNIHsNoLsN4PsOYTtO4btPIftPojtQIntQYrtQ4vuRYzuRo3uSI7uSo/uTJDuTZHuT5LvUZPvUpTvVJXv" +
    "VpbvV5fvWZjwW5nwXJrwXpzwYJ3wYp7wY5/xZaDxZ6HxaKLxaqPxbKTxbaXxb6bycafycqjydKnydqryeKvyeazze63zfa7zfq/zgLDzgrLzg7P0" +
    "hbT0h7X0iLb0irf0jLj0jrn0j7r1kbv1k7z1lL31lr71mL/1mcD2m8H2ncL2n8P2oMT2osX2pMb2pcf3p8n3qcr3qsv3rMz3rs33r874sc/4s9D4" +
    "tdH4ttL4uNP4utT5u9X5vdb5v9f5wNj5wtn5xNr5xdv6x9z6yd36y9/6zOD6zuH60OL70eP70+T71eX71ub72Of72uj82+n83er83+v84ez84u38" +
    "5O785u/95/D96fH96/L97PP97vX98Pb+8ff+8/j+9fn+9/r++Pv++vz//P3//f7///////39//z8/vr6/vn4/vf3/vX1/vTz/fLx/fDw/e/u/e3s" +
    "/Ozr/Orp/Ojn/Ofm/OXk++Ti++Lh++Df+9/d+93b+tva+trY+tjW+tfV+dXT+dPR+dLQ+dDO+c/M+M3L+MvJ+MrH+MjF+MfE98XC98PA98K/98C9" +
    "9r679r269ru49rq29ri19baz9bWx9bOv9bKu9bCs9K6q9K2p9Kun9Kml9Kik86ai86Wg86Of86Gd8qCb8p6Z8p2Y8puW8pmU8ZiT8ZaR8ZSP8ZOO" +
    "8ZGM8JCK8I6I8IyH8IuF74mD74iC74aA74R+74N97oF77n957n547nx27nt07Xly7Xdx7XZv7XRt7XNs7HFq7G9o7G5n7Gxl62pj62li62dg62Ze" +
    "62Rc6mJb6mFZ6l9X6l5W6lxU6VpS6VlR6VdP6VZN6FRM6FJK6FFI6E9G6E1F50xD50pB50lA50c+50U85kQ75kI55kE35j825T005Twy5Tow5Tgv" +
    "5Tct5DUr5DQq5DIo",
};

export const BLUE = [40, 122, 235];
export const RED = [228, 50, 40];
export const LUMA = [0.2126, 0.7152, 0.0722];

/** Documented in explainers/maps/overlays.py. */
export const RULE = {
  fine: 1024,
  rough: 0.1,
  coarse_color: 0.15,
  coarse_light: 0.8,
  fine_color: 0,
  fine_light: 0.45,
  strength: 0.9,
  curve: 0.65,
  low_line: 0.5,
  high_line: 0.8,
  line: 0.002777777777777778,
  halo: 0.55,
  full: 0.995,
  blur: 0.004464285714285714,
  signed_blur: 0.013392857142857142,
};
