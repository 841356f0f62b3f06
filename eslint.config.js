import js from "@eslint/js";
import globals from "globals";

export default [
  { ignores: [".venv/", "build/", "explainers/display/map.js"] }, // map.js is generated from scripts of the page
  js.configs.recommended,
  {
    languageOptions: { globals: globals.browser },
    rules: {
      "no-unused-vars": ["error", { ignoreRestSiblings: true }],
      "prefer-const": "error",
      "no-var": "error",
      eqeqeq: "error",
    },
  },
];
