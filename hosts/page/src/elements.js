"use strict";
// What the scripts of all pages share. Everything that comes from the network is shown by textContent, and never as HTML.

const byId = (id) => document.getElementById(id);

const element = (tag, className, text) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};

const svg = (tag, attributes, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};

/** Changes a text or a class only if it is another one, so that nothing is drawn again for nothing. */
const set = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};
const setClass = (node, name) => {
  if (node.className !== name) node.className = name;
};

const count = (() => {
  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  return (number) => whole.format(number);
})();
