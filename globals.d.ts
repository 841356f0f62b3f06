// What the scripts use beyond the types of the DOM: all elements of the page are HTML or SVG, and the DOM converts numbers.
interface Element extends HTMLOrSVGElement {
  setAttribute(name: string, value: string | number): void;
}

interface Node {
  contains(other: EventTarget | null): boolean;
}

interface Window {
  /** What the first page contains: values of parts, and the state, of a landing image. */
  saliscope?: { stored?: { props: Record<string, object>; state: object } };
}
